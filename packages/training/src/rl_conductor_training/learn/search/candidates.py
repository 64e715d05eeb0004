"""Candidate workflows over a pool: single workers, generic shapes of two and three steps, and generalised plans."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product, zip_longest

from rl_conductor.planning.fallback import ANSWER, VERIFY, single_step
from rl_conductor.workflow.workflow import Step, Workflow

MAX_CANDIDATES = 60
"""Maximum number of candidates; of a large pool's chains of three, a random selection is kept."""
SPECIALIST = "Find or work out what the answer needs, and give it with the words of the question that it belongs to."
CALCULATE = "Take the facts above and work out the result that the question asks for."
WRITE = "Take the last result above and write the complete answer, exactly in the form that the question asks for."
JOIN = "Compare the drafts above, settle any difference, and give the complete final answer."


def single_workers(workers: Sequence[str]) -> list[Workflow]:
    """Builds the workflow of each worker alone."""
    return [single_step(worker) for worker in workers]


def build_candidates(
    workers: Sequence[str], proposals: Sequence[Workflow], *, max_steps: int, seed: int
) -> list[Workflow]:
    """Builds the candidates, the most promising first: single workers, chains and proposals in turn, then other shapes.

    Many of them share their first steps, which run once for each question.

    Args:
        workers: names of the workers.
        proposals: plans that the planner wrote for single questions; their subtasks are replaced by general ones.
        max_steps: maximum number of steps.
        seed: seed of the random selection where there are too many.
    """
    candidates = dict.fromkeys(single_workers(workers))
    in_turn = zip_longest(_chains(workers), dict.fromkeys(map(generalize, proposals)))
    first = [workflow for pair in in_turn for workflow in pair if workflow is not None]
    triples, joins = list(_triples(workers)), list(_joins(workers))
    generator = random.Random(seed)  # noqa: S311
    generator.shuffle(triples)
    generator.shuffle(joins)
    for workflow in (*first, *triples, *_checks(workers), *joins):
        if len(candidates) >= max(MAX_CANDIDATES, len(workers)):
            break
        candidates.setdefault(workflow)
    return [workflow for workflow in candidates if len(workflow.steps) <= max_steps]


def generalize(workflow: Workflow) -> Workflow:
    """Replaces the subtasks of a plan for one question by ones that fit any question."""
    if len(workflow.steps) == 1:
        return single_step(workflow.steps[0].worker)
    last = len(workflow.steps) - 1
    subtasks = [SPECIALIST if not step.access else CALCULATE for step in workflow.steps[:last]]
    subtasks.append(WRITE if workflow.steps[last].access else ANSWER)
    steps = (
        Step(subtask=subtask, worker=step.worker, access=step.access)
        for subtask, step in zip(subtasks, workflow.steps, strict=True)
    )
    return Workflow(steps=tuple(steps))


def describe(workflow: Workflow) -> str:
    """Describes who works in what order, such as `reader → coder` or `a + b → c`."""
    parts = [" + ".join(workflow.steps[index].worker for index in layer) for layer in workflow.layers]
    checks = len(workflow.steps) == 2 and workflow.steps[1].subtask == VERIFY
    return " → ".join(parts) + (" (check)" if checks else "")


def _chain(*steps: tuple[str, str]) -> Workflow:
    """Builds a chain of pairs of worker and subtask, in which each step reads all earlier ones."""
    return Workflow(
        steps=tuple(
            Step(subtask=subtask, worker=worker, access=frozenset(range(index)))
            for index, (worker, subtask) in enumerate(steps)
        )
    )


def _chains(workers: Sequence[str]) -> Iterator[Workflow]:
    for first, second in permutations(workers, 2):
        yield _chain((first, SPECIALIST), (second, WRITE))


def _checks(workers: Sequence[str]) -> Iterator[Workflow]:
    """Yields checks of an answer; that answer is the same step as the worker alone, so it costs nothing more."""
    for first, second in product(workers, repeat=2):
        yield _chain((first, ANSWER), (second, VERIFY))


def _triples(workers: Sequence[str]) -> Iterator[Workflow]:
    for first, second, third in permutations(workers, 3):
        yield _chain((first, SPECIALIST), (second, CALCULATE), (third, WRITE))
    for worker, last in permutations(workers, 2):
        yield _chain((worker, SPECIALIST), (worker, SPECIALIST), (last, WRITE))


def _joins(workers: Sequence[str]) -> Iterator[Workflow]:
    for first, second in combinations(workers, 2):
        for last in workers:
            drafts = (Step(subtask=ANSWER, worker=first), Step(subtask=ANSWER, worker=second))
            yield Workflow(steps=(*drafts, Step(subtask=JOIN, worker=last, access=frozenset({0, 1}))))
