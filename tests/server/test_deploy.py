from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rl_conductor.config.discovered_pool import from_file
from rl_conductor_server.settings import Settings, read_settings
from server.conftest import Serve

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()


def documents() -> Iterator[dict[str, Any]]:
    for name in KUSTOMIZATION["resources"]:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


def pod_of(kind: str, name: str) -> dict[str, Any]:
    found = next(one for one in documents() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


PODS = {name: pod_of(kind, name) for kind, name in [("Deployment", "conductor"), ("Deployment", "vllm")]}
SERVER = PODS["conductor"]["containers"][0]


def test_every_manifest_is_listed() -> None:
    assert {*KUSTOMIZATION["resources"], "kustomization.yaml"} == {path.name for path in KUBERNETES.glob("*.yaml")}


@pytest.mark.parametrize("document", list(documents()), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_kubernetes_knows_every_field_of(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_service_is_reached_at_the_port_that_its_container_listens_on(name: str) -> None:
    service = next(one for one in documents() if one["kind"] == "Service" and one["metadata"]["name"] == name)
    targets = {port["targetPort"] for port in service["spec"]["ports"]}
    assert targets == {port["name"] for port in PODS[name]["containers"][0]["ports"]}


def test_the_settings_make_a_pool_and_name_services_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "secret")
    settings = read_settings(KUBERNETES / "server.toml")
    assert settings.inline_pool is not None
    assert set(from_file(settings.inline_pool, "a test").pool) == {"gpt", "gpt-mini", "claude"}
    assert settings.keys
    services = {one["metadata"]["name"] for one in documents() if one["kind"] == "Service"}
    named = re.findall(r"(?:http://|@)(\w+)", (KUBERNETES / "server.toml").read_text())
    assert set(named) == {"vllm", "postgres"} <= services


def test_a_pod_that_must_stop_gets_the_time_to_finish_what_it_runs() -> None:
    pause = SERVER["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = read_settings(KUBERNETES / "server.toml").intake.drain_seconds
    assert PODS["conductor"]["terminationGracePeriodSeconds"] > pause + drain


def test_the_image_has_all_libraries_but_those_that_run_models_in_process() -> None:
    large = {"local", "presidio", "transformers", "vllm"}
    for package in ("core", "server"):
        project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
        (installed,) = re.findall(rf"'\./packages/{package}\[(.*?)\]'", CONTAINERFILE)
        required = project["optional-dependencies"].keys() - large - {"telemetry"}  # the server requires it itself
        assert set(installed.split(",")) == required


def test_port_and_settings_are_where_image_and_manifest_say() -> None:
    port = Settings().port
    assert SERVER["ports"][0]["containerPort"] == port
    assert f"EXPOSE {port}" in CONTAINERFILE
    assert f"127.0.0.1:{port}/healthz" in CONTAINERFILE
    assert f'"{SERVER["volumeMounts"][0]["mountPath"]}/server.toml"' in CONTAINERFILE
    assert KUSTOMIZATION["configMapGenerator"] == [{"name": "conductor", "files": ["server.toml"]}]


def test_nobody_is_root_in_image_and_pod() -> None:
    user = int(re.findall(r"^USER (\d+)", CONTAINERFILE, re.MULTILINE)[-1])
    assert user == PODS["conductor"]["securityContext"]["runAsUser"] > 0
    assert SERVER["securityContext"]["readOnlyRootFilesystem"]
    (home,) = re.findall(r"install --directory --owner=(\d+) (\S+)", CONTAINERFILE)  # where the store is unless told
    assert home == (str(user), re.findall(r"^WORKDIR (\S+)", CONTAINERFILE, re.MULTILINE)[-1])


def test_the_image_is_built_of_what_is_there() -> None:
    for paths in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE):
        assert all((ROOT / path).exists() for path in paths.split())
    for package, extras in re.findall(r"packages/(\w+)\[([\w,]+)\]", CONTAINERFILE):
        project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


async def test_probes_are_answered(serve: Serve) -> None:
    at = await serve()
    paths = {SERVER[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    for path in paths:
        assert (await at.http.get(path)).status_code == 200
        assert (await at.http.head(path)).status_code == 200  # as load balancers and monitors ask
