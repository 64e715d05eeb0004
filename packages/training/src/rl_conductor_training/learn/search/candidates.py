"""Candidate workflows over a pool: single workers, generic shapes of two and three steps, and generalised plans.

A chain comes with two kinds of subtasks: general ones, and ones that the workers' descriptions give.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, permutations, product, zip_longest

from rl_conductor.planning.fallback import single_step
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.subtasks import ANSWER, VERIFY
from rl_conductor.workflow.workflow import Step, Workflow

MAX_CANDIDATES = 60
"""Maximum number of candidates; of a large pool's chains of three, a random selection is kept."""
SPECIALIST = "Find or work out what the answer needs, and give it with the words of the question that it belongs to."
CALCULATE = "Take the facts above and work out the result that the question asks for."
WRITE = "Take the last result above and write the complete answer, exactly in the form that the question asks for."
JOIN = "Compare the drafts above, settle any difference, and give the complete final answer."
GENERAL_SUBTASKS = frozenset({ANSWER, VERIFY, SPECIALIST, CALCULATE, WRITE})
MAX_DESCRIPTION = 100
"""Maximum number of characters that a subtask takes from a worker's description."""


def single_workers(workers: Sequence[str]) -> list[Workflow]:
    """Builds the workflow of each worker alone."""
    return [single_step(worker) for worker in workers]


def descriptions(pool: WorkerPool) -> dict[str, str]:
    """Returns the description of each worker."""
    return {name: worker.card.strengths for name, worker in pool.items()}


def build_candidates(
    workers: Mapping[str, str], proposals: Sequence[Workflow], *, max_steps: int, seed: int
) -> list[Workflow]:
    """Builds the candidates, the most promising first: single workers, chains and proposals in turn, then other shapes.

    Many of them share their first steps, which run once for each question.

    Args:
        workers: the description of each worker, or an empty text.
        proposals: plans that the planner wrote for single questions; their subtasks are replaced by general ones.
        max_steps: maximum number of steps.
        seed: seed of the random selection where there are too many.
    """
    generator = random.Random(seed)  # noqa: S311
    names = list(workers)
    pairs, longer = _pairs(names), _triples(names, generator)
    shapes = chain(
        _in_turn(map(_general_chain, pairs), _described_chains(pairs, workers), map(generalize, proposals)),
        _in_turn(map(_general_chain, longer), _described_chains(longer, workers)),
        _checks(names),
        _joins(names),
    )
    candidates = dict.fromkeys(single_workers(names))
    for workflow in shapes:
        if len(candidates) >= max(MAX_CANDIDATES, len(names)):
            break
        if len(workflow.steps) <= max_steps:
            candidates.setdefault(workflow)
    return list(candidates)


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
    """Describes the order of the workers, such as `reader → coder` or `a + b → c`.

    Subtasks other than the general ones are those of the workers' descriptions, or of a plan for one question.
    """
    parts = [" + ".join(workflow.steps[index].worker for index in layer) for layer in workflow.layers]
    if len(workflow.steps) == 2 and workflow.steps[1].subtask == VERIFY:
        return " → ".join(parts) + " (check)"
    is_general = len(workflow.steps) == 1 or any(step.subtask in GENERAL_SUBTASKS for step in workflow.steps)
    return " → ".join(parts) + ("" if is_general else " (own subtasks)")


def _general_chain(workers: Sequence[str]) -> Workflow:
    """Builds a chain with general subtasks; a worker that comes twice at the beginning finds things out both times."""
    first, *middle, last = workers
    steps = [(worker, SPECIALIST if worker == first else CALCULATE) for worker in middle]
    return Workflow.chain((first, SPECIALIST), *steps, (last, WRITE))


def _described_chains(chains: Sequence[Sequence[str]], descriptions: Mapping[str, str]) -> Iterator[Workflow]:
    """Builds the chains of which each worker has a description, which gives its subtask."""
    subtasks = {worker: _described_subtask(text) for worker, text in descriptions.items() if text.strip()}
    for workers in chains:
        if all(worker in subtasks for worker in workers):
            yield Workflow.chain(*((worker, subtasks[worker]) for worker in workers))


def _described_subtask(description: str) -> str:
    """Makes a subtask of the first clause of a description, such as "Writes numbers in words.".

    Small models follow it better than general subtasks, which say more than what one worker has to do.
    """
    clause = re.split(r"[,;\n]|\. ", description.strip(), maxsplit=1)[0].strip(" .")[:MAX_DESCRIPTION]
    return f"{clause[:1].upper()}{clause[1:]}."


def _pairs(workers: Sequence[str]) -> list[tuple[str, str]]:
    """Returns all pairs; each worker comes first once, and second once, among as many pairs as there are workers."""
    count = len(workers)
    return [(workers[i], workers[(i + offset) % count]) for offset in range(1, count) for i in range(count)]


def _triples(workers: Sequence[str], generator: random.Random) -> list[tuple[str, ...]]:
    """Returns orders of three workers, a random selection of many, then those that begin with a worker twice."""
    orders: list[tuple[str, ...]] = list(islice(permutations(workers, 3), MAX_CANDIDATES))
    if len(orders) == MAX_CANDIDATES:
        orders = [tuple(generator.sample(workers, 3)) for _ in range(MAX_CANDIDATES)]
    repeated: list[tuple[str, ...]] = [(worker, worker, last) for worker, last in permutations(workers, 2)]
    generator.shuffle(orders)
    generator.shuffle(repeated)
    return orders + repeated


def _in_turn(*sequences: Iterable[Workflow]) -> Iterator[Workflow]:
    return (workflow for row in zip_longest(*sequences) for workflow in row if workflow is not None)


def _checks(workers: Iterable[str]) -> Iterator[Workflow]:
    """Yields checks of an answer; that answer is the same step as the worker alone, so it costs nothing more."""
    for first, second in product(workers, repeat=2):
        yield Workflow.chain((first, ANSWER), (second, VERIFY))


def _joins(workers: Iterable[str]) -> Iterator[Workflow]:
    for first, second in combinations(workers, 2):
        for last in workers:
            drafts = (Step(subtask=ANSWER, worker=first), Step(subtask=ANSWER, worker=second))
            yield Workflow(steps=(*drafts, Step(subtask=JOIN, worker=last, access=frozenset({0, 1}))))
