"""Shortens a plan that has too many steps, so that its last step, which writes the answer, always survives. Pure.

Steps that the answer does not depend on are dropped first, then steps are merged, and only then a step that is needed
is dropped: whoever read it reads what it read instead. The result breaks no rule that the long plan kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow


class _Draft(NamedTuple):
    """A plan on its way to fewer steps."""

    steps: tuple[Step, ...]
    numbers: tuple[tuple[int, ...], ...]
    """For each step, the numbers that its parts had in the plan as written."""
    unneeded: tuple[int, ...] = ()
    """The numbers of dropped steps that the answer did not depend on."""
    lost: tuple[int, ...] = ()
    """The numbers of dropped steps that it did depend on."""


def shortened(workflow: Workflow, space: PlanSpace) -> tuple[Workflow, list[str]] | None:
    """Returns `workflow` with at most `space.max_steps` steps, and a description of each change.

    Returns `None` if the plan breaks another rule of `space` too, or if what is left could not answer: a last step
    that only combines replies is no answer once there are none to combine.
    """
    written = len(workflow.steps)
    if written <= space.max_steps:
        return workflow, []
    roomy = space.model_copy(update={"max_steps": written})
    if roomy.violations(workflow):
        return None
    draft = _Draft(workflow.steps, tuple((number + 1,) for number in range(written)))
    while len(draft.steps) > space.max_steps:
        allowed = (one for one in _candidates(draft) if not roomy.violations(Workflow(steps=one.steps)))
        shorter = next(allowed, None)
        if shorter is None:
            return None
        draft = shorter
    return Workflow(steps=draft.steps), [
        f"a plan of {written} steps was shortened to {space.max_steps}",
        *_changes(draft),
    ]


def _changes(draft: _Draft) -> Iterator[str]:
    for numbers in draft.numbers:
        if len(numbers) > 1:
            yield f"steps {_listed(numbers)} were merged into one"
    if draft.unneeded:
        yield f"left out because the answer does not depend on it: step {_listed(draft.unneeded)}"
    if draft.lost:
        yield f"left out because there were too many: step {_listed(draft.lost)}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _candidates(draft: _Draft) -> Iterator[_Draft]:
    """The plans with one step fewer, the one that loses least first."""
    steps, last = draft.steps, len(draft.steps) - 1
    needed = Workflow(steps=steps).needed
    yield from (_dropped(draft, i) for i in range(last) if i not in needed)
    alike = [(i, k) for i, k in combinations(range(last), 2) if _read_alike(steps[i], steps[k])]
    yield from (_merged(draft, i, k) for i, k in sorted(alike, key=lambda pair: _workers_differ(steps, *pair)))
    for i in reversed(range(last)):
        shorter = _dropped(draft, i)
        if shorter.steps[-1].access or shorter.steps[-1].recall:
            yield shorter
    yield from (_merged_into_last(draft, i) for i in sorted(steps[last].access, reverse=True))


def _read_alike(first: Step, second: Step) -> bool:
    return (first.access, first.recall) == (second.access, second.recall)


def _workers_differ(steps: tuple[Step, ...], first: int, second: int) -> bool:
    return steps[first].worker != steps[second].worker


def _dropped(draft: _Draft, index: int) -> _Draft:
    """The plan without one step, whose readers read what it read."""
    gone, number = draft.steps[index], draft.numbers[index]
    needed = index in Workflow(steps=draft.steps).needed
    return draft._replace(
        steps=_without(draft.steps, index, gone.access, recall=gone.recall),
        numbers=(*draft.numbers[:index], *draft.numbers[index + 1 :]),
        unneeded=draft.unneeded if needed else (*draft.unneeded, *number),
        lost=(*draft.lost, *number) if needed else draft.lost,
    )


def _merged(draft: _Draft, first: int, second: int) -> _Draft:
    """The plan in which the worker of one step does the subtask of a later one too, which reads the same."""
    steps, numbers = draft.steps, list(draft.numbers)
    both = steps[first].model_copy(update={"subtask": f"{steps[first].subtask}\n{steps[second].subtask}"})
    rest = _without((*steps[:first], both, *steps[first + 1 :]), second, frozenset({first}), recall=False)
    numbers[first] += numbers.pop(second)
    return draft._replace(steps=rest, numbers=tuple(numbers))


def _merged_into_last(draft: _Draft, index: int) -> _Draft:
    """The plan in which the worker of the last step does the subtask of one that it reads too, first."""
    gone, numbers = draft.steps[index], list(draft.numbers)
    *rest, last = _without(draft.steps, index, gone.access, recall=gone.recall)
    both = last.model_copy(update={"subtask": f"{gone.subtask}\n{last.subtask}"})
    numbers[-1] += numbers.pop(index)
    return draft._replace(steps=(*rest, both), numbers=tuple(numbers))


def _without(steps: tuple[Step, ...], gone: int, instead: frozenset[int], *, recall: bool) -> tuple[Step, ...]:
    """The steps but for the one at `gone`; those that read it read `instead`, and later steps move up by one."""
    return (*steps[:gone], *(_rewired(step, gone, instead, recall=recall) for step in steps[gone + 1 :]))


def _rewired(step: Step, gone: int, instead: frozenset[int], *, recall: bool) -> Step:
    read = gone in step.access
    access = step.access - {gone} | instead if read else step.access
    moved = frozenset(i - (i > gone) for i in access)
    return step.model_copy(update={"access": moved, "recall": step.recall or (read and recall)})
