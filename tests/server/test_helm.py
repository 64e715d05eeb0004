"""The Helm chart, rendered by helm itself, beside what kustomize makes of deploy/kubernetes."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rl_conductor.config.discovered_pool import from_file
from rl_conductor_server.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "rl-conductor"
PARTS = ("ingress", "networkPolicy", "serviceMonitor", "autoscaling", "batchWorkers", "batchWorkers.autoscaling")
EVERYTHING = tuple(f"{name}.enabled=true" for name in PARTS)
OWN_POSTGRES = ("postgres.enabled=false", "postgres.url=postgres://me@db.example.com/runs")

Documents = dict[tuple[str, str], dict[str, Any]]
"""Kubernetes objects by kind and name."""

pytestmark = pytest.mark.skipif(
    not (shutil.which("helm") and shutil.which("kubectl")), reason="no helm here: run `sh tests/environments/helm.sh`"
)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def template(*values: str, secret: str = "existingSecret=conductor") -> subprocess.CompletedProcess[str]:
    """Renders the chart with these values, as `helm install` would."""
    options = [part for value in (secret, *values) if value for part in ("--set", value)]
    return run("helm", "template", "demo", CHART, "--api-versions", "monitoring.coreos.com/v1", *options)


@cache
def rendered(*values: str, secret: str = "existingSecret=conductor") -> Documents:
    finished = template(*values, secret=secret)
    assert finished.returncode == 0, finished.stderr
    return by_name(finished.stdout)


def by_name(text: str) -> Documents:
    documents = filter(None, yaml.safe_load_all(text))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pod(documents: Documents, name: str = "demo-rl-conductor", kind: str = "Deployment") -> dict[str, Any]:
    found: dict[str, Any] = documents[kind, name]["spec"]["template"]["spec"]
    return found


# ------------------------------------------------------------------------------- the same as kustomize


def normalised(documents: Documents) -> dict[tuple[str, str], Any]:
    """Leaves out what may differ: labels, the hash in a name or an annotation, and how the store is addressed."""
    text = json.dumps([strip(one) for one in documents.values()])
    for ours, theirs in [(f"conductor-{name}", name) for name in ("postgres", "vllm", "weights")] + [("1024Mi", "1Gi")]:
        text = text.replace(ours, theirs)
    (hashed,) = [name for kind, name in documents if kind == "ConfigMap"]
    text = text.replace(json.dumps(hashed), '"conductor"')
    return {(one["kind"], one["metadata"]["name"]): one for one in json.loads(text)}


def strip(value: Any) -> Any:
    if isinstance(value, list):
        return [strip(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "server.toml" in value:
        settings = tomllib.loads(value["server.toml"])
        settings.pop("store", None)
        return settings
    own = {"labels", "annotations", "creationTimestamp"}
    if value.get("name") == "server":
        own |= {"args", "imagePullPolicy"}
    kept = {name: strip(one) for name, one in value.items() if name not in own}
    return {name: component(one) if name in ("matchLabels", "selector") else one for name, one in kept.items()}


def component(labels: dict[str, Any]) -> Any:
    """Reduces the labels that select pods to the component that they name."""
    if "matchLabels" in labels:
        return labels
    name = labels.get("app.kubernetes.io/component", labels.get("app"))
    return "conductor" if name == "server" else name


def test_the_defaults_are_what_kustomize_makes_of_the_folder_beside() -> None:
    kustomized = run("kubectl", "kustomize", DEPLOY / "kubernetes")
    assert kustomized.returncode == 0, kustomized.stderr
    expected = normalised(by_name(kustomized.stdout))
    assert len(expected) == 10
    assert normalised(rendered("fullnameOverride=conductor")) == expected


def test_the_ingress_is_that_of_deploy_tls() -> None:
    (expected,) = yaml.safe_load_all((DEPLOY / "tls" / "ingress.yaml").read_text())
    documents = rendered("fullnameOverride=conductor", "ingress.enabled=true")
    ingress = documents["Ingress", "conductor"]
    ingress["metadata"].pop("labels")
    assert ingress == expected


# ----------------------------------------------------------------------------------- what is rendered


def test_helm_finds_nothing_wrong() -> None:
    finished = run("helm", "lint", "--strict", CHART, "--set", "existingSecret=conductor")
    assert finished.returncode == 0, finished.stdout


@pytest.mark.parametrize("values", [(), EVERYTHING, OWN_POSTGRES], ids=["defaults", "everything", "own-postgres"])
def test_kubernetes_knows_every_field(values: tuple[str, ...]) -> None:
    for document in rendered(*values).values():
        if document["kind"] != "ServiceMonitor":  # Kubernetes itself does not know it
            kubernetes_validate.validate(document, "1.37", strict=True)


def test_every_pod_is_unprivileged_and_has_the_selected_labels() -> None:
    documents = rendered(*EVERYTHING)
    for (kind, name), document in documents.items():
        if kind in ("Deployment", "StatefulSet"):
            selector, labels = document["spec"]["selector"]["matchLabels"], document["spec"]["template"]["metadata"]
            assert labels["labels"] == selector
            (container,) = pod(documents, name, kind)["containers"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert not pod(documents, name, kind)["automountServiceAccountToken"]


def test_two_releases_in_one_namespace_share_no_object_and_no_pod() -> None:
    first, second = (by_name(run("helm", "template", name, CHART, "--set", "existingSecret=s").stdout) for name in "ab")
    assert not first.keys() & second.keys()
    services = [documents["Service", f"{name}-rl-conductor"] for name, documents in (("a", first), ("b", second))]
    assert services[0]["spec"]["selector"] != services[1]["spec"]["selector"]


def test_the_settings_are_valid_and_their_store_is_the_postgres_of_the_release() -> None:
    documents = rendered()
    text = documents["ConfigMap", "demo-rl-conductor"]["data"]["server.toml"]
    settings = Settings.model_validate(tomllib.loads(text))
    assert settings.inline_pool is not None
    assert settings.planner is not None
    assert settings.planner.model_dump()["options"]["base_url"] == "http://demo-rl-conductor-vllm:8000/v1"
    (server,) = pod(documents)["containers"]
    assert server["args"][-2:] == ["--store", "postgres://conductor@demo-rl-conductor-postgres/conductor"]
    assert {("Service", "demo-rl-conductor-postgres"), ("Service", "demo-rl-conductor-vllm")} <= documents.keys()


def test_the_pool_of_the_settings_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "secret")
    text = rendered()["ConfigMap", "demo-rl-conductor"]["data"]["server.toml"]
    pool = Settings.model_validate(tomllib.loads(text)).inline_pool
    assert pool is not None
    assert set(from_file(pool, "a test").pool) == {"gpt", "gpt-mini", "claude"}


def test_a_postgres_of_ones_own_takes_the_place_of_that_of_the_chart() -> None:
    documents = rendered(*OWN_POSTGRES)
    assert not [name for _, name in documents if "postgres" in name]
    (server,) = pod(documents)["containers"]
    assert server["args"][-1] == "postgres://me@db.example.com/runs"


def test_an_autoscaler_decides_alone_on_the_number_of_replicas() -> None:
    documents = rendered(*EVERYTHING)
    assert "replicas" not in documents["Deployment", "demo-rl-conductor"]["spec"]
    target = documents["HorizontalPodAutoscaler", "demo-rl-conductor"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "demo-rl-conductor")


def test_batch_workers_have_the_settings_and_the_store_of_the_servers() -> None:
    documents = rendered("batchWorkers.enabled=true", "batchWorkers.concurrency=64", "batchWorkers.replicaCount=3")
    worker, server = pod(documents, "demo-rl-conductor-batch"), pod(documents)
    (container,), (serving,) = worker.pop("containers"), server.pop("containers")
    assert container["args"][:5] == [
        "batch-worker",
        "--config",
        "/etc/rl-conductor/server.toml",
        "--concurrency",
        "64",
    ]
    assert serving["args"][5:7] == ["--port", "8100"]
    assert container["args"][5:] == serving["args"][7:]
    shared = ("image", "envFrom", "volumeMounts", "securityContext", "resources")
    assert [container[name] for name in shared] == [serving[name] for name in shared]
    assert worker.pop("topologySpreadConstraints") != server.pop("topologySpreadConstraints")
    assert worker == server
    assert documents["Deployment", "demo-rl-conductor-batch"]["spec"]["replicas"] == 3


def test_batch_workers_scale_with_the_queue_that_the_adapter_offers() -> None:
    documents = rendered(*EVERYTHING)
    (metric,) = documents["HorizontalPodAutoscaler", "demo-rl-conductor-batch"]["spec"]["metrics"]
    (rule,) = yaml.safe_load((DEPLOY / "monitoring" / "adapter.yaml").read_text())["rules"]["custom"]
    assert rule["seriesQuery"].startswith(metric["object"]["metric"]["name"])
    described = metric["object"]["describedObject"]
    assert (described["kind"], described["name"]) in documents
    assert described["kind"].lower() in rule["resources"]["overrides"]
    assert "replicas" not in documents["Deployment", "demo-rl-conductor-batch"]["spec"]


def test_pods_get_files_and_the_identity_of_a_cloud_and_their_selectors_stay() -> None:
    values = (
        "serviceAccountName=bedrock",
        "podLabels.azure=yes",
        "extraVolumes[0].name=learned",
        "extraVolumes[0].persistentVolumeClaim.claimName=learned",
        "extraVolumeMounts[0].name=learned",
        "extraVolumeMounts[0].mountPath=/learned",
    )
    documents = rendered(*EVERYTHING, *values)
    for name in ("demo-rl-conductor", "demo-rl-conductor-batch"):
        deployment = documents["Deployment", name]
        kubernetes_validate.validate(deployment, "1.37", strict=True)
        template, (container,) = pod(documents, name), pod(documents, name)["containers"]
        assert template["serviceAccountName"] == "bedrock"
        assert template["volumes"][-1] == {"name": "learned", "persistentVolumeClaim": {"claimName": "learned"}}
        assert container["volumeMounts"][-1] == {"name": "learned", "mountPath": "/learned"}
        selector, labels = deployment["spec"]["selector"]["matchLabels"], deployment["spec"]["template"]["metadata"]
        assert labels["labels"] == selector | {"azure": "yes"}


def test_a_single_replica_does_not_keep_its_node_from_being_drained() -> None:
    budget = rendered("replicaCount=1")["PodDisruptionBudget", "demo-rl-conductor"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


def test_only_those_may_connect_whom_the_policies_name() -> None:
    documents = rendered(*EVERYTHING, "networkPolicy.from[0].namespaceSelector.matchLabels.name=ingress")
    server = documents["NetworkPolicy", "demo-rl-conductor"]["spec"]["ingress"]
    assert server[0]["from"] == [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    for name in ("vllm", "postgres"):
        (rule,) = documents["NetworkPolicy", f"demo-rl-conductor-{name}"]["spec"]["ingress"]
        components = [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]]
        assert components == ["server", "batch"]


def test_prometheus_reads_the_metrics_with_an_api_key() -> None:
    documents = rendered(*EVERYTHING)
    monitor = documents["ServiceMonitor", "demo-rl-conductor"]["spec"]
    labels = documents["Service", "demo-rl-conductor"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {"name": "rl-conductor-metrics", "key": "api-key"}


# ---------------------------------------------------------------------------- what follows from the settings


def with_config(text: str) -> str:
    return "config=" + text.replace(",", "\\,").replace("{", "\\{").replace("}", "\\}")


def test_memory_and_time_to_stop_follow_from_the_settings() -> None:
    documents = rendered(with_config("[intake]\ntotal_body_bytes = 104857600\ndrain_seconds = 0\n"))
    (server,) = pod(documents)["containers"]
    assert server["resources"]["limits"]["memory"] == f"{25 * 100 + 424}Mi"
    assert pod(documents)["terminationGracePeriodSeconds"] == 5 + 0 + 10


def test_settings_without_limits_have_those_of_the_server() -> None:
    intake = Settings().intake
    documents = rendered(with_config('[admins.ann]\nsha256 = "' + "0" * 64 + '"\n'))
    (server,) = pod(documents)["containers"]
    assert server["resources"]["limits"]["memory"] == f"{25 * intake.total_body_bytes // 2**20 + 424}Mi"
    assert pod(documents)["terminationGracePeriodSeconds"] == 5 + intake.drain_seconds + 10


def test_a_memory_limit_of_ones_own_is_kept() -> None:
    (server,) = pod(rendered("resources.limits.memory=3Gi"))["containers"]
    assert server["resources"]["limits"] == {"memory": "3Gi"}


def test_other_settings_or_secrets_restart_the_replicas() -> None:
    def restarts_for(value: str, secret: str = "secrets.PGPASSWORD=a") -> object:
        documents = rendered("secrets.VLLM_API_KEY=k", value, secret=secret)
        return documents["Deployment", "demo-rl-conductor"]["spec"]["template"]["metadata"]["annotations"]

    unchanged = restarts_for("service.port=80")
    assert restarts_for("service.port=81") == unchanged
    assert restarts_for(with_config("[intake]\nrunning = 2\n")) != unchanged
    assert restarts_for("service.port=80", secret="secrets.PGPASSWORD=b") != unchanged


def test_secrets_are_in_the_secret_only() -> None:
    documents = rendered("secrets.VLLM_API_KEY=sesame-1", secret="secrets.PGPASSWORD=sesame-2")
    secret = documents["Secret", "demo-rl-conductor"]
    assert secret["stringData"] == {"VLLM_API_KEY": "sesame-1", "PGPASSWORD": "sesame-2"}
    others = [one for one in documents.values() if one is not secret]
    assert "sesame" not in json.dumps(others)
    assert pod(documents)["containers"][0]["envFrom"] == [{"secretRef": {"name": "demo-rl-conductor"}}]


# ------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("postgres.enabled=false",), "set postgres.url=postgres://USER@HOST/NAME, or postgres.enabled=true"),
        (("postgres.url=postgres://me@db/runs",), "set postgres.enabled=false, too"),
        (("postgres.enabled=false", "postgres.url=postgres://me:secret@db/runs"), "/postgres/url"),
        (("replicas=3",), "additional properties 'replicas' not allowed"),
        (("config=workers = = 1",), "config is not valid TOML"),
    ],
)
def test_what_cannot_work_is_refused(values: tuple[str, ...], message: str) -> None:
    finished = template(*values)
    assert finished.returncode != 0
    assert message in finished.stderr


def test_missing_secrets_are_named() -> None:
    finished = template(secret="")
    assert "set secrets.PGPASSWORD, or existingSecret" in finished.stderr
    finished = template(secret="secrets.PGPASSWORD=a")
    assert "set secrets.VLLM_API_KEY, or existingSecret" in finished.stderr
