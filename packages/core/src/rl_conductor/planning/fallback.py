"""Who of a pool can serve one request, and the plainest workflow that may run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_conductor.errors import PolicyError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.types import FilePart, Grammar, ImagePart, JsonFormat, Request
from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow

ANSWER = "Answer the overall task."
VERIFY = "Check the earlier reply, correct what is wrong in it, and give the complete answer to the overall task."


def capable(space: PlanSpace, pool: WorkerPool, request: Request) -> PlanSpace:
    """`space` for the workers that can take what `request` holds, and a last step by one that can give what it asks.

    Raises:
        PolicyError: none is left.
    """
    parts = {type(part) for message in request.messages for part in message.content}
    holds = {"images": ImagePart in parts, "files": FilePart in parts}
    asks = {
        "tools": bool(request.tools),
        "json_schema": isinstance(request.response_format, JsonFormat),
        "grammar": isinstance(request.response_format, Grammar),
    }
    if not any((*holds.values(), *asks.values())):
        return space
    allowed = _able(space.choices, pool, holds)
    last = allowed & _able(space.last_choices, pool, asks)
    if not last:
        needs = " and ".join(what for what, needed in (holds | asks).items() if needed)
        who = ", ".join(space.last_choices)
        raise PolicyError(
            f"the request needs {needs}, which no worker that may answer takes ({who}); add or allow one that does",
            rule="capabilities",
        )
    return space.model_copy(update={"allowed": allowed, "last": last})


def _able(names: Sequence[str], pool: WorkerPool, needs: Mapping[str, bool]) -> frozenset[str]:
    wanted = [what for what, needed in needs.items() if needed]
    return frozenset(name for name in names if all(getattr(pool[name].model.capabilities, what) for what in wanted))


def one_call(worker: str) -> Workflow:
    """One step, in which this worker answers alone."""
    return Workflow(steps=(Step(subtask=ANSWER, worker=worker),))


def fallback_workflow(space: PlanSpace, pool: WorkerPool) -> Workflow:
    """The plainest workflow that may run: the best worker answers, checked by the verifier if there must be one."""
    best = sorted(space.choices, key=lambda name: -pool[name].card.mean_accuracy)
    able = [name for name in best if name in space.last_choices]
    alone = {name: one_call(name) for name in best}
    checks = [Step(subtask=VERIFY, worker=name, access=frozenset({0})) for name in able]
    checked = (Workflow(steps=(*first.steps, check)) for first in alone.values() for check in checks)
    for workflow in (*(alone[name] for name in able), *checked):
        if not space.violations(workflow):
            return workflow
    raise PolicyError("the policy lets no workflow run: no worker may read what the last one must", rule="forbid")
