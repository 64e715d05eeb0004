from __future__ import annotations

import pytest
from pydantic import ValidationError

from core.steps import DIAMOND, step, workflow
from rl_conductor.workflow.workflow import Step, Workflow


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


def test_the_drawings_say_which_inputs_a_step_sees() -> None:
    plan = workflow(Step(subtask="Look.", worker="ada", inputs=frozenset({"image 1"})), step("bob", 0))
    blind = workflow(Step(subtask="Guess.", worker="ada", inputs=frozenset()))
    assert "sees image 1" in plan.mermaid()
    assert "sees image 1" in plan.ascii()
    assert "sees no inputs" in blind.mermaid()
    assert "sees" not in workflow(step()).mermaid()
