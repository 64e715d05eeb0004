from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.runs import pool_of
from rl_conductor.config.discovery import DiscoveredPool
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor_server.catalog import catalogue
from rl_conductor_server.experiments.experiment import Routes
from rl_conductor_server.settings import Settings, read_settings

ROUTE = """
[routes.{name}]
released = 2026-11-01
incumbent = "openai:gpt-5"
conductor = "{conductor}"
{more}
"""


def read(folder: Path, name: str = "assistant", conductor: str = "conductor-mini", more: str = "") -> Settings:
    path = folder / "conductor.toml"
    path.write_text(ROUTE.format(name=name, conductor=conductor, more=more))
    return read_settings(path)


def routes(settings: Settings, **pool: Any) -> Routes:
    found = DiscoveredPool(pool_of(**pool or {"a": "from a"}), Planner(model=ScriptedModel("")), ())
    return Routes(settings.routes, catalogue(found, {}))


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_a_route_alone_is_its_old_model(tmp_path: Path) -> None:
    route = routes(read(tmp_path))["assistant"]
    assert (route.entry.shadow, route.entry.canary.percent, route.judge) == (None, 0, None)
    assert [worker.model.name for worker in route.incumbent.conductor.pool.values()] == ["openai:gpt-5"]
    assert (route.pinned, route.incumbent.pinned, route.conductor.pinned) == ("assistant-2026-11-01",) * 3
    assert route.incumbent.fingerprint != route.conductor.fingerprint


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("percent = 5", "routes.assistant.percent: Extra inputs are not permitted"),
        ("shadow = { share = 0.1, usd = 1 }", "write judge, scorer or both"),
        ('shadow = { share = 0.1, judge = "openai:gpt-5" }', "a shadow needs a budget of its own"),
        ('shadow = { share = 2, usd = 1, judge = "openai:gpt-5" }', "routes.assistant.shadow.share"),
        ('shadow = { share = 0.1, usd = 1, scorer = "score" }', "routes.assistant.shadow.scorer"),
        ("canary = { percent = 101 }", "routes.assistant.canary.percent"),
        ("canary = { guards = { latency = 1 } }", "routes.assistant.canary.guards.latency"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(tmp_path: Path, more: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read(tmp_path, more=more)


def test_a_route_to_nobody_or_under_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"routes.assistant: no model 'ultra' of ours; there are conductor-mini, "):
        routes(read(tmp_path, conductor="ultra"))
    with pytest.raises(ConfigError, match=r"routes.conductor-mini: this name is taken"):
        routes(read(tmp_path, name="conductor-mini"))


def test_dollars_are_promised_only_where_they_can_be_counted(tmp_path: Path) -> None:
    judge = 'judge = { model = "openai:of-the-house", options = { base_url = "http://127.0.0.1:9/v1" } }'
    with pytest.raises(ConfigError, match="the price of openai:of-the-house is unknown"):
        routes(read(tmp_path, more=f"shadow = {{ share = 1, usd = 1, {judge} }}"))
    assert routes(read(tmp_path, more=f"shadow = {{ share = 1, tokens = 9, {judge} }}"))["assistant"].judge
    priced = 'shadow = { share = 1, usd = 1, judge = "openai:gpt-5" }'
    with pytest.raises(ConfigError, match="the price of scripted:scripted is unknown"):
        routes(read(tmp_path, more=priced), a=ScriptedModel("from a", price=None))
