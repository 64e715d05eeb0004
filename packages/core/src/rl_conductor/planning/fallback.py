"""The simplest workflows: one worker answers alone, or another one checks the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from rl_conductor.errors import PolicyError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.subtasks import ANSWER, VERIFY
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow


def single_step(worker: str, inputs: frozenset[str] | None = None) -> Workflow:
    """Builds the workflow of one step in which `worker` answers alone."""
    return Workflow(steps=(Step(subtask=ANSWER, worker=worker, inputs=inputs),))


def fallback_workflow(space: PlanSpace, pool: WorkerPool) -> Workflow:
    """Builds the simplest workflow that the policy allows.

    The best worker answers alone (see `WorkerPool.rank`); if the policy demands a verifier, that one checks the answer.

    Raises:
        PolicyError: the policy allows no workflow.
    """
    for workflow in _simple_workflows(space, pool):
        if not space.violations(workflow):
            return workflow
    raise PolicyError("the policy allows no workflow: no worker may read what the last step must read", rule="forbid")


def _simple_workflows(space: PlanSpace, pool: WorkerPool) -> Iterator[Workflow]:
    """Yields workflows of one step, then of a check of an answer, then of a check of one per kind of attachment."""
    ranked = pool.rank(space.choices)
    final_workers = [name for name in ranked if name in space.final_workers]
    yield from map(single_step, final_workers)
    yield from (_checked_by(check, (first,)) for first in ranked for check in final_workers)
    if len(space.attachments) > 1:
        readers = [[name for name in ranked if name in rule.readers] for rule in space.attachments]
        yield from (_checked_by(check, names) for names in product(*readers) for check in final_workers)


def _checked_by(check: str, workers: Sequence[str]) -> Workflow:
    """Builds the workflow in which each of `workers` answers after the ones before, and `check` has the last word."""
    return Workflow.chain(*((name, ANSWER) for name in workers), (check, VERIFY))
