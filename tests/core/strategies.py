"""Hypothesis strategies for plan spaces and workflows, and the space that the corpus is read in."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import assume
from hypothesis import strategies as st

from rl_conductor.plan_text.forms import Form
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def subsets(names: tuple[str, ...], *, least: int = 0) -> st.SearchStrategy[frozenset[str]]:
    """Any subset of `names` with at least `least` members."""
    sizes = range(least, len(names) + 1)
    return st.sampled_from([frozenset(chosen) for size in sizes for chosen in combinations(names, size)])


@st.composite
def spaces(draw: st.DrawFn) -> PlanSpace:
    """Any space of up to 4 workers and 4 steps; some of them allow no plan at all."""
    roster = tuple("abcd"[: draw(st.integers(1, 4))])
    pairs = list(product(roster, roster))
    most = draw(st.integers(1, 4))
    return PlanSpace(
        roster=roster,
        allowed=draw(st.just(frozenset(roster)) | subsets(roster, least=1)),
        max_steps=most,
        min_steps=draw(st.integers(1, most)),
        access=draw(st.sampled_from(["binary", "positional"])),
        forbidden_flows=frozenset(draw(st.lists(st.sampled_from(pairs), max_size=3))),
        last=draw(st.none() | subsets(roster, least=1)),
        last_reads_all=draw(st.booleans()),
        recallable=draw(st.none() | subsets(roster)),
        may_accept=draw(st.booleans()),
        subtask_chars=draw(st.sampled_from([1, 2, 3, 30])),
        inputs=draw(st.sampled_from([(), (), ("image 1",), ("turn 2", "image 1", "text 1")])),
        shared_inputs=draw(st.sampled_from([frozenset[str](), frozenset({"turn 1"})])),
    )


def plannable(space: PlanSpace, form: Form) -> PlanSpace:
    """The space as far as `form` can express it."""
    return space.model_copy(update={"inputs": ()}) if form == "lists" else space


@st.composite
def attempts(draw: st.DrawFn, space: PlanSpace) -> Workflow:
    """A workflow that can be spelled in `space`, allowed or not."""
    steps: list[Step] = []
    for index in range(draw(st.integers(1, space.max_steps + 1))):
        access, recall = draw(st.sampled_from(_readings(space, index)))
        steps.append(
            Step(
                subtask=draw(TEXT.map(lambda text: text[: space.subtask_chars + 1]).filter(lambda text: text.strip())),
                worker=draw(st.sampled_from(space.roster)),
                access=access,
                recall=recall,
                inputs=draw(_inputs(space)),
            )
        )
    return Workflow(steps=tuple(steps))


@st.composite
def workflows(draw: st.DrawFn, space: PlanSpace) -> Workflow:
    """A workflow that `space` allows, built step by step without the grammar."""
    count = draw(st.integers(space.min_steps, space.max_steps))
    steps: tuple[Step, ...] = ()
    for index in range(count):
        ends = index == count - 1
        subtask = draw(TEXT.map(lambda text: text.lstrip()[: space.subtask_chars]).filter(bool))
        inputs = draw(_inputs(space))
        options = [
            (*steps, Step(subtask=subtask, worker=worker, access=access, recall=recall, inputs=inputs))
            for worker in space.choices
            for access, recall in _readings(space, index)
        ]
        allowed = [option for option in options if _may_stand(space, option, ends)]
        assume(allowed)
        steps = draw(st.sampled_from(allowed))
    return Workflow(steps=steps)


def _inputs(space: PlanSpace) -> st.SearchStrategy[frozenset[str] | None]:
    """Every choice of inputs that can be spelled in `space`."""
    if not space.inputs:
        return st.none()
    return st.none() | subsets(space.inputs).map(space.shared_inputs.union)


def _may_stand(space: PlanSpace, steps: tuple[Step, ...], ends: bool) -> bool:
    workflow = Workflow(steps=steps)
    return not (space.violations(workflow) if ends else space.step_violations(workflow))


def _readings(space: PlanSpace, index: int) -> list[tuple[frozenset[int], bool]]:
    """Every access that can be spelled for the step at `index`."""
    later = space.recallable is not None
    if space.access == "binary":
        return [(frozenset(), False), (frozenset(range(index)), later)]
    subsets = [frozenset(chosen) for size in range(index + 1) for chosen in combinations(range(index), size)]
    return [(subset, recall) for subset in subsets for recall in ((False, True) if later else (False,))]
