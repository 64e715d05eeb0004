from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.steps import DIAMOND, step, workflow
from core.strategies import spaces, workflows
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

NAMES = ("ada", "bob", "cy")


def space(**rules: object) -> PlanSpace:
    return PlanSpace.model_validate({"roster": NAMES, "allowed": frozenset(NAMES), "access": "positional", **rules})


def test_a_roster_names_each_worker_once() -> None:
    with pytest.raises(ValidationError, match="names a worker twice"):
        PlanSpace(roster=("ada", "ada"), allowed=frozenset({"ada"}))


def test_choices_keep_the_order_of_the_roster() -> None:
    assert space(allowed=frozenset({"cy", "ada", "stranger"})).choices == ("ada", "cy")


CASES: dict[str, tuple[dict[str, object], Workflow, str]] = {
    "too many steps": ({"max_steps": 1}, workflow(step(), step()), "2 steps, but 1 to 1 are allowed"),
    "too few steps": ({"min_steps": 2}, workflow(step()), "1 steps, but 2 to 5 are allowed"),
    "unknown worker": ({}, workflow(step("dee")), "step 1: there is no worker 'dee'; there are ada, bob, cy"),
    "denied worker": ({"allowed": frozenset({"bob"})}, workflow(step()), "step 1: worker 'ada' is not allowed"),
    "long subtask": (
        {"subtask_chars": 5},
        workflow(step()),
        "step 1: a subtask of 6 characters; at most 5 are allowed",
    ),
    "some steps in a binary space": (
        {"access": "binary"},
        workflow(step(), step(), step("ada", 0)),
        "step 3: a step sees either no earlier step or all of them",
    ),
    "nothing to recall": ({}, workflow(step(recall=True)), "step 1: there is no earlier round to recall"),
    "all but the earlier rounds": (
        {"access": "binary", "recallable": frozenset()},
        workflow(step(), step("ada", 0)),
        "step 2: a step sees the earlier rounds exactly when it sees the earlier steps",
    ),
    "only the earlier rounds": (
        {"access": "binary", "recallable": frozenset()},
        workflow(step(), step(recall=True)),
        "step 2: a step sees the earlier rounds exactly when it sees the earlier steps",
    ),
    "another last worker": (
        {"last": frozenset({"bob"})},
        workflow(step()),
        "the last step must be done by 'bob', not 'ada'",
    ),
    "a verifier that reads too little": (
        {"last_reads_all": True},
        workflow(step(), step(), step("ada", 1)),
        "the last step must see every earlier step",
    ),
    "forbidden edge": (
        {"forbidden_flows": frozenset({("bob", "ada")})},
        workflow(step(), step("bob", 0)),
        "step 2: nothing from 'ada' may reach 'bob'",
    ),
    "forbidden flow through another": (
        {"forbidden_flows": frozenset({("cy", "ada")})},
        workflow(step(), step("bob", 0), step("cy", 1)),
        "step 3: nothing from 'ada' may reach 'cy'",
    ),
    "forbidden recall": (
        {"recallable": frozenset({"ada"}), "forbidden_flows": frozenset({("bob", "ada")})},
        workflow(step("bob", recall=True)),
        "step 1: nothing from 'ada' may reach 'bob'",
    ),
    "forbidden recall through another": (
        {"recallable": frozenset({"ada"}), "forbidden_flows": frozenset({("bob", "ada")})},
        workflow(step("cy", recall=True), step("bob", 0)),
        "step 2: nothing from 'ada' may reach 'bob'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_rule_is_the_one_violation_named(case: str) -> None:
    rules, broken, violation = CASES[case]
    limited = space(**rules)
    assert limited.violations(broken) == (violation,)
    with pytest.raises(WorkflowValidationError, match="the plan may not run") as caught:
        limited.check(broken)
    assert caught.value.violations == (violation,)


def test_what_keeps_the_rules_is_returned_as_it_is() -> None:
    assert space().violations(DIAMOND) == ()
    assert space().check(DIAMOND) is DIAMOND


def test_a_callers_workflow_may_have_long_subtasks_and_read_any_steps() -> None:
    binary = space(access="binary", subtask_chars=5)
    plan = workflow(step(), step(), step("ada", 0))
    assert len(binary.violations(plan)) == 4
    assert binary.relaxed_for(plan).violations(plan) == ()


def test_every_broken_rule_is_named() -> None:
    assert len(space(allowed=frozenset({"bob"}), max_steps=4, last=frozenset({"cy"})).violations(DIAMOND)) == 5


def test_in_a_later_round_the_first_step_may_see_the_earlier_rounds_or_not() -> None:
    later = space(access="binary", recallable=frozenset({"ada"}))
    assert not later.violations(workflow(step(recall=True)))
    assert not later.violations(workflow(step()))
    assert not later.violations(workflow(step(), step("bob", 0, recall=True)))


def test_half_a_plan_is_judged_only_by_what_no_later_step_can_mend() -> None:
    strict = space(min_steps=2, last=frozenset({"bob"}), last_reads_all=True)
    assert strict.step_violations(workflow(step())) == ()
    assert strict.step_violations(workflow(step("dee"))) != ()


@given(data=st.data(), drawn=spaces())
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_nothing_unreadable_reaches_a_reader_in_an_allowed_workflow(data: st.DataObject, drawn: PlanSpace) -> None:
    made = data.draw(workflows(drawn))
    content: list[set[str]] = []
    for each in made.steps:
        seen = set().union(*(content[i] for i in each.access), (drawn.recallable or set()) if each.recall else set())
        assert not {(reader, source) for reader, source in product([each.worker], seen)} & drawn.forbidden_flows
        content.append(seen | {each.worker})


@pytest.mark.parametrize(
    ("names", "offered", "problem"),
    [
        ({"image 1"}, ("turn 1", "image 1"), None),
        ({"image 2"}, ("turn 1", "image 1"), "there is no input 'image 2'; there are image 1, turn 1"),
        ({"image 1"}, (), "there is no input 'image 1'; there are no earlier turns or attachments"),
    ],
)
def test_a_step_names_inputs_that_exist(names: set[str], offered: tuple[str, ...], problem: str | None) -> None:
    plan = workflow(Step(subtask="Look.", worker="ada", inputs=frozenset(names)))
    violations = space(inputs=offered).violations(plan)
    assert len(violations) == (problem is not None)
    assert problem is None or problem in violations[0]
