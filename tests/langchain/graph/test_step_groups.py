"""Grouping of steps: no step is lost, and supersteps make no step wait for one that it does not read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from core.runs import workflow
from langchain_conductor.graph.step_groups import group_steps
from rl_conductor import Step, Workflow


@st.composite
def workflows(draw: st.DrawFn, *, positional: bool) -> Workflow:
    length = draw(st.integers(1, 7))
    reads = []
    for index in range(length):
        every = frozenset(range(index))
        some = st.frozensets(st.sampled_from(sorted(every))) if index else st.just(every)
        reads.append(draw(some if positional else st.sampled_from([frozenset[int](), every])))
    return Workflow(steps=tuple(Step(subtask="do", worker="w", access=access) for access in reads))


SECONDS = st.lists(st.floats(0.01, 10.0), min_size=7, max_size=7)


def wall(plan: Workflow, steps: Collection[int], seconds: Sequence[float]) -> float:
    """Seconds that LangGraph takes: of each superstep, as long as its longest node."""
    nodes = group_steps(plan, steps)
    level: dict[frozenset[int], int] = {}
    for node in nodes:
        read = frozenset[int]().union(*(plan.steps[index].access for index in node))
        level[node] = 1 + max((level[other] for other in level if other & read), default=-1)
    took = {node: wall(plan, node, seconds) if len(node) > 1 else seconds[min(node)] for node in nodes}
    depths = range(max(level.values()) + 1)
    return sum(max(took[node] for node in nodes if level[node] == depth) for depth in depths)


def layered(plan: Workflow, seconds: Sequence[float]) -> float:
    """Seconds that the supersteps of one flat graph would take."""
    needed = [[index for index in layer if index in plan.needed] for layer in plan.layers]
    return sum(max(seconds[index] for index in layer) for layer in needed if layer)


@given(workflows(positional=False), SECONDS)
def test_plans_whose_steps_read_all_or_nothing_take_as_long_as_their_critical_path(
    plan: Workflow, seconds: list[float]
) -> None:
    took = [time if index in plan.needed else 0.0 for index, time in enumerate(seconds[: len(plan.steps)])]
    assert abs(wall(plan, plan.needed, seconds) - plan.critical_path(tuple(took))) < 1e-9


@given(workflows(positional=True), SECONDS)
def test_other_plans_take_no_longer_than_one_flat_graph_would(plan: Workflow, seconds: list[float]) -> None:
    assert wall(plan, plan.needed, seconds) <= layered(plan, seconds) + 1e-9


@given(workflows(positional=True))
def test_every_needed_step_has_its_place_once(plan: Workflow) -> None:
    def steps_in(steps: Collection[int]) -> list[int]:
        return [index for part in group_steps(plan, steps) for index in (steps_in(part) if len(part) > 1 else part)]

    assert sorted(steps_in(plan.needed)) == sorted(plan.needed)


def test_steps_side_by_side_stay_in_one_graph() -> None:
    plan = workflow(("a", "x", ()), ("a", "y", ()), ("a", "join", (0, 1)), ("a", "end", (2,)))
    assert [sorted(part) for part in group_steps(plan, plan.needed)] == [[0], [1], [2], [3]]


def test_a_chain_beside_another_step_gets_a_graph_of_its_own() -> None:
    plan = workflow(("a", "quick", ()), ("a", "read", (0,)), ("a", "slow", ()), ("a", "end", (0, 1, 2)))
    assert [sorted(part) for part in group_steps(plan, plan.needed)] == [[0, 1], [2], [3]]
