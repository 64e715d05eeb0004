"""The server's pages are executed: requests over a real socket, settings by the reader of settings."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from core.runs import plan, pool_of
from forks import run_program
from rl_conductor.cli.main import installed_commands
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.experiments.experiment import Experiments
from rl_conductor_server.settings import KeyEntry, OidcEntry, Settings
from server.conftest import Serve

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("serve.md", "serve-stateful.md", "serve-settings.md", "monitoring.md")


def blocks(page: str) -> list[tuple[str, str]]:
    """Everything between fences, and what kind of thing it is."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = [block for page in PAGES for block in blocks(page)]
PROGRAMS = [text for kind, text in BLOCKS if kind == "py"]
CURL = [text for kind, text in BLOCKS if text.startswith("curl")]
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.startswith("rl-")]
Run = Callable[[str, Mapping[str, str]], subprocess.CompletedProcess[str]]
TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


async def printed_by(run: Run, source: str, serve: Serve) -> str:
    """Returns the output of a program or script that asks a server, with a key if it has one."""
    keys = {"team-a": KeyEntry(sha256=hash_key("rlc_k"))} if "KEY" in source else {}
    at = await serve({"a": "a draft", "b": "It is 391."}, TWO, keys=keys)
    source = source.replace("http://127.0.0.1:8100", at.url)
    done = await asyncio.to_thread(run, source, os.environ | {"KEY": "rlc_k"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=["openai", "anthropic", "conversation", "batch"])
async def test_the_programs_get_their_answers(serve: Serve, program: str) -> None:
    assert "It is 391." in await printed_by(run_program, program, serve)


def run_script(source: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", source], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_first_request_gets_its_answer(serve: Serve) -> None:
    script, *_ = CURL  # the others need a run
    reply = json.loads(await printed_by(run_script, script, serve))
    assert reply["choices"][0]["message"]["content"] == "It is 391."


def test_the_settings_are_settings_and_name_every_one() -> None:
    few, text = [text for kind, text in BLOCKS if kind == "toml"]
    assert Settings.model_validate(tomllib.loads(few)).models["house"].limits.usd == Decimal("0.10")
    settings = Settings.model_validate(tomllib.loads(text))
    assert settings.keys["team-a"].models == frozenset({"conductor-mini", "house"})
    for entry in (
        settings,
        settings.store,
        settings.intake,
        settings.batches,
        settings.conversations,
        settings.feedback,
        settings.log,
        settings.web,
        settings.keys["team-a"],
        settings.models["house"],
        settings.experiments["assistant"],
    ):
        missing = set(type(entry).model_fields) - entry.model_fields_set
        assert missing <= {"planner", "workers"}


def test_the_page_of_the_settings_shows_the_defaults_that_it_promises() -> None:
    _, text = [text for kind, text in BLOCKS if kind == "toml"]
    shown = tomllib.loads(text)
    assert shown["intake"].pop("connections") == 10_000  # the most that the default, which depends on the machine, is
    for table in ("log", "store", "intake", "batches", "conversations", "feedback"):
        defaults = getattr(Settings(), table).model_dump(exclude={"connections"})
        assert shown[table] == defaults, table


def test_the_page_about_the_web_pages_names_every_setting_of_the_sign_in() -> None:
    (text,) = [text for kind, text in blocks("web.md") if kind == "toml"]
    entry = Settings.model_validate(tomllib.loads(text)).oidc
    assert entry is not None
    assert entry.model_fields_set == set(OidcEntry.model_fields)
    assert (entry.scopes, entry.groups_claim) == (("openid", "email", "profile"), "groups")


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_are_commands(line: str) -> None:
    assert line.split()[1] in installed_commands()


@pytest.mark.parametrize("text", [text for kind, text in blocks("adopting.md") if kind == "toml"])
def test_the_stages_of_adopting_can_be_set_up(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{vendor}_API_KEY", "none")
    settings = Settings.model_validate(tomllib.loads(text))
    found = DiscoveredPool(planner=Planner(model=ScriptedModel("")), pool=pool_of(a="from a"))
    experiment = Experiments(settings.experiments, build_catalog(found, settings.models))["assistant"]
    assert experiment.judge is not None
    names = [one.conductor.planner.model.name for one in (experiment.baseline, experiment.conductor, experiment.judge)]
    assert names == ["openai:gpt-6-sol", "scripted:scripted", "anthropic:claude-sonnet-5-5"]
