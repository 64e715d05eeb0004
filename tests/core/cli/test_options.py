"""Options of the command line change the discovered pool."""

from __future__ import annotations

import pytest

from rl_conductor import Card, Planner, Policy, ScriptedModel, Worker, WorkerPool
from rl_conductor.cli.options import RunOptions
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.errors import ConfigError


def found(policy: Policy) -> DiscoveredPool:
    """A pool of three, of which one is external."""
    tags = {"near": frozenset[str](), "far": frozenset({"external"}), "other": frozenset[str]()}
    workers = [Worker.of(name, ScriptedModel(name), card=Card(name=name, tags=tags[name])) for name in tags]
    return DiscoveredPool(planner=Planner(model=ScriptedModel("")), pool=WorkerPool(workers), policy=policy)


def test_what_is_denied_is_denied_beside_what_was_denied_already() -> None:
    policy = RunOptions(denied=["tag:external"]).policy(found(Policy(deny=frozenset({"other"}))))

    assert policy.deny == {"other", "tag:external"}


def test_a_usual_last_worker_gives_way_to_what_was_asked_for() -> None:
    usual = Policy(final="near")

    assert RunOptions(workers=["far"]).policy(found(usual)).final is None
    assert RunOptions(denied=["near"]).policy(found(usual)).final is None
    assert RunOptions(denied=["far"]).policy(found(usual)).final == "near"
    assert RunOptions().policy(found(usual)) == usual


@pytest.mark.parametrize("selector", ["tag:internal", "region:eu", "Near", ""])
def test_a_selector_that_means_nobody_is_refused(selector: str) -> None:
    with pytest.raises(ConfigError, match=r"--worker names .*, but there are only near, far, other, tag:external"):
        RunOptions(workers=[selector]).policy(found(Policy()))
