"""Filters workers by capability and builds the fallback workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_conductor.errors import PolicyError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.types import FilePart, Grammar, ImagePart, JsonFormat, Request
from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow

ANSWER = "Answer the overall task."
VERIFY = "Check the earlier reply, correct what is wrong in it, and give the complete answer to the overall task."


def filter_capable(space: PlanSpace, pool: WorkerPool, request: Request) -> PlanSpace:
    """Restricts `space` to the workers with the capabilities that `request` needs.

    All workers must support its images and files; the worker of the last step also its tools and response format.

    Raises:
        PolicyError: no worker can do the last step.
    """
    parts = {type(part) for message in request.messages for part in message.content}
    input_needs = {"images": ImagePart in parts, "files": FilePart in parts}
    answer_needs = {
        "tools": bool(request.tools),
        "json_schema": isinstance(request.response_format, JsonFormat),
        "grammar": isinstance(request.response_format, Grammar),
    }
    if not any((*input_needs.values(), *answer_needs.values())):
        return space
    allowed = _with_capabilities(space.choices, pool, input_needs)
    last = allowed & _with_capabilities(space.final_workers, pool, answer_needs)
    if not last:
        needs = " and ".join(capability for capability, needed in (input_needs | answer_needs).items() if needed)
        candidates = ", ".join(space.final_workers)
        raise PolicyError(
            f"the request needs {needs}, which no worker that may answer takes ({candidates}); "
            "add or allow one that does",
            rule="capabilities",
        )
    return space.model_copy(update={"allowed": allowed, "last": last})


def _with_capabilities(names: Sequence[str], pool: WorkerPool, needs: Mapping[str, bool]) -> frozenset[str]:
    required = [capability for capability, needed in needs.items() if needed]
    capabilities = {name: pool[name].model.capabilities for name in names}
    return frozenset(name for name in names if all(getattr(capabilities[name], needed) for needed in required))


def single_step(worker: str) -> Workflow:
    """Builds the workflow of one step in which `worker` answers alone."""
    return Workflow(steps=(Step(subtask=ANSWER, worker=worker),))


def fallback_workflow(space: PlanSpace, pool: WorkerPool) -> Workflow:
    """Builds the simplest workflow that the policy allows.

    The most accurate worker answers alone; if the policy demands a verifier, that one checks the answer.

    Raises:
        PolicyError: the policy allows no workflow.
    """
    ranked = sorted(space.choices, key=lambda name: -pool[name].card.mean_accuracy)
    final_workers = [name for name in ranked if name in space.final_workers]
    single_steps = {name: single_step(name) for name in ranked}
    checks = [Step(subtask=VERIFY, worker=name, access=frozenset({0})) for name in final_workers]
    verified = (Workflow(steps=(*first.steps, check)) for first in single_steps.values() for check in checks)
    for workflow in (*(single_steps[name] for name in final_workers), *verified):
        if not space.violations(workflow):
            return workflow
    raise PolicyError("the policy allows no workflow: no worker may read what the last step must read", rule="forbid")
