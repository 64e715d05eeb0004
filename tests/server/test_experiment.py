from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.runs import pool_of
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.experiments.experiment import Experiments
from rl_conductor_server.settings import Settings, read_settings

SETTINGS = """
[experiments.{name}]
released = 2026-11-01
baseline = "openai:gpt-5"
conductor = "{conductor}"
{more}
"""


def read(folder: Path, name: str = "assistant", conductor: str = "conductor-mini", more: str = "") -> Settings:
    path = folder / "server.toml"
    path.write_text(SETTINGS.format(name=name, conductor=conductor, more=more))
    return read_settings(path)


def experiments(settings: Settings, **pool: Any) -> Experiments:
    discovered = DiscoveredPool(planner=Planner(model=ScriptedModel("")), pool=pool_of(**pool or {"a": "from a"}))
    return Experiments(settings.experiments, build_catalog(discovered, {}))


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_an_experiment_without_shadow_and_canary_serves_its_baseline(tmp_path: Path) -> None:
    experiment = experiments(read(tmp_path))["assistant"]
    assert (experiment.entry.shadow, experiment.entry.canary.percent, experiment.judge) == (None, 0, None)
    assert [worker.model.name for worker in experiment.baseline.conductor.pool.values()] == ["openai:gpt-5"]
    assert (experiment.pinned, experiment.baseline.pinned, experiment.conductor.pinned) == ("assistant-2026-11-01",) * 3
    assert experiment.baseline.fingerprint != experiment.conductor.fingerprint


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("percent = 5", "experiments.assistant.percent: there is no such setting"),
        ("shadow = { share = 0.1, usd = 1 }", "write judge, scorer or both"),
        ('shadow = { share = 0.1, judge = "openai:gpt-5" }', "a shadow needs a budget of its own"),
        ('shadow = { share = 2, usd = 1, judge = "openai:gpt-5" }', "experiments.assistant.shadow.share"),
        ('shadow = { share = 0.1, usd = 1, scorer = "score" }', "experiments.assistant.shadow.scorer"),
        ("canary = { percent = 101 }", "experiments.assistant.canary.percent"),
        ("canary = { guards = { latency = 1 } }", "experiments.assistant.canary.guards.latency"),
    ],
)
def test_invalid_settings_are_rejected_by_their_name(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, more=more)


def test_an_unknown_conductor_or_a_name_in_use_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"experiments.assistant.conductor='ultra' is not a model .* one of conductor-mini, ",
    ):
        experiments(read(tmp_path, conductor="ultra"))
    with pytest.raises(ConfigError, match=r"experiments.conductor-mini: a model of this server has this name"):
        experiments(read(tmp_path, name="conductor-mini"))


def test_the_error_of_a_model_of_a_route_names_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match=r"^experiments\.assistant: .*OPENAI_API_KEY"):
        experiments(read(tmp_path))


def test_a_budget_in_dollars_needs_the_price_of_every_model(tmp_path: Path) -> None:
    judge = 'judge = { model = "openai:of-the-house", options = { base_url = "http://127.0.0.1:9/v1" } }'
    with pytest.raises(ConfigError, match=r"the price of judge \(openai:of-the-house\) is unknown"):
        experiments(read(tmp_path, more=f"shadow = {{ share = 1, usd = 1, {judge} }}"))
    assert experiments(read(tmp_path, more=f"shadow = {{ share = 1, tokens = 9, {judge} }}"))["assistant"].judge
    priced = 'shadow = { share = 1, usd = 1, judge = "openai:gpt-5" }'
    with pytest.raises(ConfigError, match=r"the price of a \(scripted:scripted\) is unknown"):
        experiments(read(tmp_path, more=priced), a=ScriptedModel("from a", price=None))
