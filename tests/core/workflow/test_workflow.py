from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.strategies import spaces, workflows
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow

NAMES = ("ada", "bob", "cy")


def step(worker: str = "ada", *access: int, subtask: str = "Do it.", recall: bool = False) -> Step:
    return Step(subtask=subtask, worker=worker, access=frozenset(access), recall=recall)


def workflow(*steps: Step) -> Workflow:
    return Workflow(steps=steps)


def space(**rules: object) -> PlanSpace:
    return PlanSpace.model_validate({"roster": NAMES, "allowed": frozenset(NAMES), "access": "positional", **rules})


DIAMOND = workflow(step(), step("bob", 0), step("cy", 0), step("bob"), step("ada", 1, 2))


# ---------------------------------------------------------------------------------------------- workflows


def test_a_workflow_has_at_least_one_step() -> None:
    with pytest.raises(ValidationError):
        Workflow(steps=())


@pytest.mark.parametrize("position", [-1, 1, 2])
def test_a_step_reads_only_earlier_steps(position: int) -> None:
    with pytest.raises(ValidationError, match=r"step 2 may read only positions before its own, 1, not \[-?\d\]"):
        workflow(step(), step("bob", position))


def test_each_step_of_a_chain_reads_all_earlier_ones() -> None:
    chain = Workflow.chain(("ada", "Look."), ("bob", "Count."), ("cy", "Write."))

    expected = (step("ada", subtask="Look."), step("bob", 0, subtask="Count."), step("cy", 0, 1, subtask="Write."))
    assert chain.steps == expected


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_a_subtask_says_something(blank: str) -> None:
    with pytest.raises(ValidationError, match="step 1 has an empty subtask"):
        workflow(step(subtask=blank))


def test_blank_space_before_a_subtask_is_dropped() -> None:
    assert step(subtask=" \n\u2003Do it. ").subtask == "Do it. "


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(ValidationError, match="character 2 of the subtask is half of a surrogate pair"):
        step(subtask="a \ud800")


def test_only_what_the_answer_can_depend_on_is_needed() -> None:
    assert DIAMOND.needed == {0, 1, 2, 4}
    assert workflow(step(), step("bob")).needed == {1}


def test_what_only_finished_steps_read_is_no_longer_needed() -> None:
    assert DIAMOND.needed_after({1}) == {0, 2, 4}
    assert DIAMOND.needed_after({1, 2}) == {4}
    assert DIAMOND.needed_after({4}) == frozenset()


def test_sources_reach_through_other_steps() -> None:
    assert [sorted(sources) for sources in DIAMOND.sources] == [[], [0], [0], [], [0, 1, 2]]


def test_steps_of_one_layer_wait_for_none_of_each_other() -> None:
    assert DIAMOND.layers == ((0, 3), (1, 2), (4,))


def test_the_critical_path_is_the_longest_way_to_the_answer() -> None:
    assert DIAMOND.critical_path() == 3
    assert DIAMOND.critical_path((1.0, 2.0, 5.0, 100.0, 0.5)) == 6.5


def test_a_workflow_is_drawn_as_text() -> None:
    assert workflow(step(), step("bob", 0)).ascii() == "   1 ada  Do it.\n─▶ 2 bob  Do it. ⟵ 1"


def test_a_workflow_is_drawn_as_mermaid_without_its_text_becoming_markup() -> None:
    drawn = workflow(step(subtask='Say "a<b & c"\nnow <br>'), step("bob", 0)).mermaid()
    assert drawn.splitlines() == [
        "flowchart TD",
        '    s0["1 · ada<br>Say &quot;a&lt;b &amp; c&quot; now &lt;br&gt;"]',
        '    s1["2 · bob<br>Do it."]',
        "    s0 --> s1",
    ]


def test_a_workflow_survives_json() -> None:
    assert Workflow.model_validate_json(DIAMOND.model_dump_json()) == DIAMOND


# ------------------------------------------------------------------------------------------------- spaces


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


def test_the_drawings_say_which_inputs_a_step_sees() -> None:
    plan = workflow(Step(subtask="Look.", worker="ada", inputs=frozenset({"image 1"})), step("bob", 0))
    blind = workflow(Step(subtask="Guess.", worker="ada", inputs=frozenset()))
    assert "sees image 1" in plan.mermaid()
    assert "sees image 1" in plan.ascii()
    assert "sees no inputs" in blind.mermaid()
    assert "sees" not in workflow(step()).mermaid()
