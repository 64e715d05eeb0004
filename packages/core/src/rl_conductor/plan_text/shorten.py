"""Shortens plans with too many steps. Pure.

Steps that the answer does not depend on are dropped first, then steps are merged, and only then a needed step is
dropped: its readers then read the steps that it read. The last step, which writes the answer, always stays. The result
breaks no rule that the long plan satisfied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow


class _Draft(NamedTuple):
    """A partially shortened plan."""

    steps: tuple[Step, ...]
    numbers: tuple[tuple[int, ...], ...]
    """For each step, the numbers of the original steps that were merged into it."""
    unneeded: tuple[int, ...] = ()
    """Numbers of dropped steps that the answer did not depend on."""
    lost: tuple[int, ...] = ()
    """Numbers of dropped steps that the answer depended on."""


def shorten_plan(workflow: Workflow, space: PlanSpace) -> tuple[Workflow, list[str]] | None:
    """Returns `workflow` with at most `space.max_steps` steps, and a description of each change.

    Returns `None` if the plan also breaks another rule of `space`, or if the last step would be left without replies to
    combine.
    """
    count = len(workflow.steps)
    if count <= space.max_steps:
        return workflow, []
    unlimited = space.model_copy(update={"max_steps": count})
    if unlimited.violations(workflow):
        return None
    draft = _Draft(workflow.steps, tuple((number + 1,) for number in range(count)))
    while len(draft.steps) > space.max_steps:
        candidates = _candidates(draft)
        shorter = next((c for c in candidates if not unlimited.violations(Workflow(steps=c.steps))), None)
        if shorter is None:
            return None
        draft = shorter
    return Workflow(steps=draft.steps), [
        f"a plan of {count} steps was shortened to {space.max_steps}",
        *_changes(draft),
    ]


def _changes(draft: _Draft) -> Iterator[str]:
    for numbers in draft.numbers:
        if len(numbers) > 1:
            yield f"steps {_join_numbers(numbers)} were merged into one"
    if draft.unneeded:
        yield f"left out because the answer does not depend on it: step {_join_numbers(draft.unneeded)}"
    if draft.lost:
        yield f"left out because there were too many: step {_join_numbers(draft.lost)}"


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _candidates(draft: _Draft) -> Iterator[_Draft]:
    """Yields plans with one step fewer, in order of increasing loss."""
    steps, last = draft.steps, len(draft.steps) - 1
    needed = Workflow(steps=steps).needed
    yield from (_drop_step(draft, i) for i in range(last) if i not in needed)
    alike = [(i, k) for i, k in combinations(range(last), 2) if _read_alike(steps[i], steps[k])]
    yield from (_merge_steps(draft, i, k) for i, k in sorted(alike, key=lambda pair: _workers_differ(steps, *pair)))
    for i in reversed(range(last)):
        shorter = _drop_step(draft, i)
        if shorter.steps[-1].access or shorter.steps[-1].recall:
            yield shorter
    yield from (_merge_into_last(draft, i) for i in sorted(steps[last].access, reverse=True))


def _read_alike(first: Step, second: Step) -> bool:
    return (first.access, first.recall) == (second.access, second.recall)


def _workers_differ(steps: tuple[Step, ...], first: int, second: int) -> bool:
    return steps[first].worker != steps[second].worker


def _drop_step(draft: _Draft, index: int) -> _Draft:
    """Drops a step; its readers then read the steps that it read."""
    dropped, number = draft.steps[index], draft.numbers[index]
    needed = index in Workflow(steps=draft.steps).needed
    return draft._replace(
        steps=_remove_step(draft.steps, index, dropped.access, recall=dropped.recall),
        numbers=(*draft.numbers[:index], *draft.numbers[index + 1 :]),
        unneeded=draft.unneeded if needed else (*draft.unneeded, *number),
        lost=(*draft.lost, *number) if needed else draft.lost,
    )


def _merge_steps(draft: _Draft, first: int, second: int) -> _Draft:
    """Merges a step into an earlier one with the same access list."""
    steps, numbers = draft.steps, list(draft.numbers)
    merged = _merged(steps[first], steps[second], steps[first])
    rest = _remove_step((*steps[:first], merged, *steps[first + 1 :]), second, frozenset({first}), recall=False)
    numbers[first] += numbers.pop(second)
    return draft._replace(steps=rest, numbers=tuple(numbers))


def _merge_into_last(draft: _Draft, index: int) -> _Draft:
    """Merges a step into the last one, which reads it."""
    dropped, numbers = draft.steps[index], list(draft.numbers)
    *rest, last = _remove_step(draft.steps, index, dropped.access, recall=dropped.recall)
    merged = _merged(dropped, last, last)
    numbers[-1] += numbers.pop(index)
    return draft._replace(steps=(*rest, merged), numbers=tuple(numbers))


def _merged(first: Step, second: Step, base: Step) -> Step:
    """Returns `base` with the subtasks and the inputs of both steps."""
    inputs = None if first.inputs is None or second.inputs is None else first.inputs | second.inputs
    return base.model_copy(update={"subtask": f"{first.subtask}\n{second.subtask}", "inputs": inputs})


def _remove_step(steps: tuple[Step, ...], removed: int, instead: frozenset[int], *, recall: bool) -> tuple[Step, ...]:
    """Removes the step at `removed`; its readers read `instead`, and later steps move up by one."""
    return (*steps[:removed], *(_rewire_step(step, removed, instead, recall=recall) for step in steps[removed + 1 :]))


def _rewire_step(step: Step, removed: int, instead: frozenset[int], *, recall: bool) -> Step:
    is_reader = removed in step.access
    access = step.access - {removed} | instead if is_reader else step.access
    moved = frozenset(i - (i > removed) for i in access)
    return step.model_copy(update={"access": moved, "recall": step.recall or (is_reader and recall)})
