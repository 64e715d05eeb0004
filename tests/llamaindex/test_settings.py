"""Settings that are changed after construction, by assignment or in a copy."""

from __future__ import annotations

from typing import Any

import pytest

from core.scripted_guardrails import Check, always
from llama_index.llms.conductor import Conductor
from llamaindex.scripts import conductor, plan, planner, scripted_worker
from rl_conductor import ConfigError, Limits, Policy, PolicyError, ScriptedModel
from rl_conductor.errors import RefusedError
from rl_conductor.guardrails import Refuse

ANSWER = "The whole answer."
LONE = plan((0, "Answer.", []))


def test_assigned_workers_do_the_work() -> None:
    llm = Conductor({"a": ScriptedModel("Old.")}, planner=planner(LONE))
    assert llm.complete("Why?").text == "Old."
    llm.workers = [ScriptedModel("New.", name="b")]
    assert llm.complete("Why?").text == "New."
    assert list(llm.workers) == list(llm.conductor.pool) == ["b"]


def test_an_assigned_policy_limits_profile_and_instructions_apply() -> None:
    llm = conductor(planner=planner(LONE))
    llm.policy = Policy(single="writer")
    assert llm.complete("Why?").text == ANSWER
    llm.limits = Limits(steps=1)
    assert llm.conductor.limits.steps == 1
    llm.instructions = "Check twice."
    assert llm.conductor.planner.instructions == "Check twice."
    llm.profile = "mini"
    assert llm.metadata.model_name == "conductor-mini"


def test_assigned_guardrails_check_the_next_call() -> None:
    llm = conductor()
    llm.guardrails = [Check(stages=("input",), verdict=always(Refuse("no")))]
    with pytest.raises(RefusedError):
        llm.complete("Why?")


def test_settings_that_do_not_change_the_pool_keep_its_models() -> None:
    llm = conductor()
    before = llm._selected
    llm.policy = Policy(final="writer")
    llm.temperature = 0.5
    assert llm._selected is before
    llm.complete("Why?")
    assert scripted_worker(llm, "writer").requests[0].sampling.temperature == 0.5


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"limits": "wrong"}, "limits is 'wrong': write a table or a dict of settings"),
        ({"limits": {"calls": "many"}}, "limits.calls is 'many': write"),
        ({"profile": "maxi"}, "profile is 'maxi': write 'mini' or 'ultra'"),
        ({"temperature": "hot"}, "temperature is 'hot': write a number"),
        ({"max_retries": -1}, "max_retries is -1: "),
    ],
)
def test_a_wrong_argument_says_what_to_write(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"^{why}"):
        Conductor({"a": ScriptedModel("x")}, **settings)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("workers", {"a": 7}, "'a' is a int, which is not a worker"),
        ("planner", 7, "'planner' is a int, which is not a worker"),
        ("limits", 3, "limits is 3: "),
        ("profile", "maxi", "profile is 'maxi': "),
        ("max_tokens", 0, "max_tokens is 0: "),
        ("temperature", "hot", "temperature is 'hot': "),
    ],
)
def test_a_wrong_assignment_is_an_error_and_changes_nothing(name: str, value: Any, why: str) -> None:
    llm = conductor()
    before = getattr(llm, name)
    with pytest.raises(ConfigError) as caught:
        setattr(llm, name, value)
    assert str(caught.value).startswith(why)
    assert getattr(llm, name) == before
    assert llm.complete("Why?").text == ANSWER


def test_an_assigned_policy_that_allows_no_workflow_is_an_error() -> None:
    llm = conductor()
    with pytest.raises(PolicyError):
        llm.policy = Policy(final="nobody")
    assert llm.policy is None
    assert llm.complete("Why?").text == ANSWER


def test_a_copy_with_other_settings_works_by_them_and_leaves_the_original() -> None:
    llm = conductor(planner=planner(LONE))
    copy = llm.model_copy(update={"policy": Policy(single="writer")})
    assert (llm.complete("Why?").text, copy.complete("Why?").text) == ("A draft.", ANSWER)
    with pytest.raises(ConfigError, match="limits is 3: "):
        llm.model_copy(update={"limits": 3})
