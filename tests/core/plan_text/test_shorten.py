"""Plans with too many steps: the last step, which writes the answer, always survives."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from core.strategies import spaces, workflows
from rl_conductor.plan_text.shorten import shorten_plan
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

SPACE = PlanSpace(roster=("a", "b", "c"), allowed=frozenset("abc"), access="positional")


def steps(*written: tuple[str, str, Sequence[int]]) -> Workflow:
    return Workflow(steps=tuple(Step(subtask=s, worker=w, access=frozenset(access)) for w, s, access in written))


def short(workflow: Workflow, most: int, **rules: object) -> tuple[Workflow, list[str]]:
    found = shorten_plan(workflow, SPACE.model_copy(update={"max_steps": most, **rules}))
    assert found is not None
    return found


def test_a_plan_that_is_short_enough_stays_as_it_is() -> None:
    plan = steps(("a", "x", []), ("b", "y", [0]))

    assert short(plan, 2) == (plan, [])


def test_steps_that_the_answer_does_not_depend_on_go_first() -> None:
    plan = steps(("a", "x", []), ("b", "y", []), ("c", "z", [0]))

    shorter, changes = short(plan, 2)

    assert shorter == steps(("a", "x", []), ("c", "z", [0]))
    assert changes == [
        "a plan of 3 steps was shortened to 2",
        "left out because the answer does not depend on it: step 2",
    ]


def test_steps_of_one_worker_that_read_the_same_are_merged_before_those_of_two() -> None:
    plan = steps(("a", "v", []), ("b", "w", []), ("a", "x", []), ("c", "y", [2]), ("c", "z", [0, 1, 3]))

    one_less, changes = short(plan, 4)
    two_less, _ = short(plan, 3)

    assert one_less == steps(("a", "v\nx", []), ("b", "w", []), ("c", "y", [0]), ("c", "z", [0, 1, 2]))
    assert changes[1:] == ["steps 1, 3 were merged into one"]
    assert two_less == steps(("a", "v\nx\nw", []), ("c", "y", [0]), ("c", "z", [0, 1]))


def test_merged_steps_see_the_inputs_of_both() -> None:
    def look(*inputs: str) -> Step:
        return Step(subtask="x", worker="a", inputs=frozenset(inputs))

    last = Step(subtask="z", worker="c", access=frozenset({0, 1}))
    rules = {"inputs": ("image 1", "image 2")}

    shorter, _ = short(Workflow(steps=(look("image 1"), look("image 2"), last)), 2, **rules)
    assert shorter.steps[0].inputs == frozenset({"image 1", "image 2"})
    everything = look().model_copy(update={"inputs": None})
    shorter, _ = short(Workflow(steps=(look("image 1"), everything, last)), 2, **rules)
    assert shorter.steps[0].inputs is None


def test_who_read_a_dropped_step_reads_what_it_read() -> None:
    chain = steps(("a", "w", []), ("b", "x", [0]), ("c", "y", [1]), ("a", "z", [2]))

    shorter, changes = short(chain, 2)

    assert shorter == steps(("a", "w", []), ("a", "z", [0]))
    assert changes[1:] == ["left out because there were too many: step 2, 3"]


def test_subtasks_too_long_to_be_merged_are_dropped() -> None:
    plan = steps(("a", "long", []), ("a", "text", []), ("b", "end", [0, 1]))

    shorter, _ = short(plan, 2, subtask_chars=5)

    assert shorter == steps(("a", "long", []), ("b", "end", [0]))


def test_a_last_step_that_can_read_nothing_any_more_does_the_work_itself() -> None:
    plan = steps(("a", "x", []), ("b", "Combine.", [0]))

    shorter, changes = short(plan, 1)

    assert shorter == steps(("b", "x\nCombine.", []))
    assert changes[1:] == ["steps 1, 2 were merged into one"]


def test_no_plan_is_better_than_a_last_step_without_what_it_combines() -> None:
    plan = steps(("a", "long text", []), ("b", "Combine.", [0]))

    assert shorten_plan(plan, SPACE.model_copy(update={"max_steps": 1, "subtask_chars": 10})) is None


def test_a_rule_that_the_long_plan_breaks_is_not_lifted_by_leaving_the_step_out() -> None:
    plan = steps(("a", "x", []), ("b", "y", []), ("c", "z", []))

    assert shorten_plan(plan, SPACE.model_copy(update={"max_steps": 1, "allowed": frozenset("bc")})) is None


def test_merging_does_not_bring_a_reply_to_who_may_not_read_it() -> None:
    plan = steps(("a", "w", []), ("b", "x", []), ("c", "y", [0]), ("c", "z", [2]), ("a", "end", [1, 3]))
    space = {"forbidden_flows": frozenset({("c", "b")})}

    shorter, _ = short(plan, 4, **space)

    assert not SPACE.model_copy(update=space).violations(shorter)
    assert shorter.steps[-1].subtask == "end"


@given(data=st.data(), space=spaces(), most=st.integers(1, 3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_what_is_left_may_run_and_ends_as_it_was_written(data: st.DataObject, space: PlanSpace, most: int) -> None:
    assume(space.min_steps <= most < space.max_steps)
    plan = data.draw(workflows(space))
    narrow = space.model_copy(update={"max_steps": most})

    found = shorten_plan(plan, narrow)

    if found is not None:
        end, written = found[0].steps[-1], plan.steps[-1]
        assert not narrow.violations(found[0])
        assert end.worker == written.worker
        assert end.subtask.endswith(written.subtask)
        assert (end.access or end.recall or end.subtask != written.subtask) or not (written.access or written.recall)
