"""A run made anew with one decision changed: another worker for a step, or another subtask.

Only the changed step and those that what it says can reach are run again. The other steps keep their replies, which
cost nothing a second time. Everything else is as for any run: a place, the key's budget, the policies and limits of
then and of now.
"""

from __future__ import annotations

from pydantic import Field, ValidationError

from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult, Trace
from rl_conductor.types import Usage, Value
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_server.errors import ApiError
from rl_conductor_server.extension import Extension
from rl_conductor_server.protocol import Ask
from rl_conductor_server.runs.handle import Live
from rl_conductor_server.runs.request import on_terms
from rl_conductor_server.service import Service
from rl_conductor_server.store import RunRow

API = "replay"
REPLAY_OF, CHANGED = "replay_of", "changed"
"""Labels of a replay: the run that it replays, and what is changed in it."""


class Change(Value):
    """One decision, made differently."""

    round: int = Field(ge=0)
    step: int = Field(ge=0)
    worker: str = Field(min_length=1)
    subtask: str = Field(min_length=1)


def read_change(fields: dict[str, str]) -> Change:
    """What a form asks for.

    Raises:
        ApiError: it is incomplete.
    """
    try:
        return Change.model_validate({name: fields.get(name) for name in Change.model_fields})
    except ValidationError:
        raise ApiError("name a step, a worker and a subtask", status=400, code="invalid_value") from None


async def begin(service: Service, row: RunRow, trace: Trace, change: Change) -> Live:
    """The run that differs in this one decision, on the account of the key that the first one was on.

    Raises:
        ConductorError: the policy forbids it, the key may no longer ask for it, or there is no such step.
    """
    done = changed(trace, change)
    account = service.keys.named(row.key)
    account.take_turn()
    served = service.routes.on(row.side, service.catalogue.named(row.model))
    account.check_model(served)
    ask = Ask(
        model=row.model,
        request=trace.request,
        extension=Extension(policy=trace.policy, limits=trace.limits),
        labels={REPLAY_OF: row.id, CHANGED: _told(trace, change)},
    )
    (asked,) = on_terms(account, served, API, ask, name=None)
    return await service.runs.start(asked, done=done)


def changed(trace: Trace, change: Change) -> tuple[Round, ...]:
    """The rounds up to the change, as if they had just been interrupted there; what is in them was paid for before.

    Raises:
        ApiError: there is no such step.
    """
    if not is_replayable(trace, change.round) or change.step >= len(trace.rounds[change.round].results):
        raise ApiError("there is no such step to change", status=404, code="step_not_found")
    before, one = trace.rounds[: change.round], trace.rounds[change.round]
    steps = [result.step for result in one.results]
    new = steps[change.step].model_copy(update={"worker": change.worker, "subtask": change.subtask})
    steps[change.step] = new
    workflow = Workflow(steps=tuple(steps))
    kept = [
        _paid(result)
        for result in one.results
        if result.index != change.step and change.step not in workflow.sources[result.index] and result.status == "ok"
    ]
    return *map(_paid_round, before), Round(plan=PlanRecord(source="given", workflow=workflow), results=tuple(kept))


def is_replayable(trace: Trace, number: int) -> bool:
    """Whether a round's steps may be changed: they were planned, and all that became of them is known."""
    if number >= len(trace.rounds):
        return False
    one = trace.rounds[number]
    planned = one.plan.workflow is not None and one.plan.source != "continuation"
    return planned and trace.error != "cancelled" and bool(one.results)


def _paid_round(one: Round) -> Round:
    plan = one.plan.model_copy(update={"calls": _free(one.plan.calls)})
    return one.model_copy(update={"plan": plan, "results": tuple(map(_paid, one.results))})


def _paid(result: StepResult) -> StepResult:
    return result.model_copy(update={"calls": _free(result.calls)})


def _free(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(call.model_copy(update={"usage": Usage()}) for call in calls)


def _told(trace: Trace, change: Change) -> str:
    """The change in words."""
    step = trace.rounds[change.round].results[change.step].step
    where = f"round {change.round + 1}, step {change.step + 1}"
    worker = f" by {change.worker} instead of {step.worker}" if change.worker != step.worker else ""
    subtask = " with another subtask" if change.subtask != step.subtask else ""
    return f"{where}{worker}{subtask}" if worker or subtask else f"{where} once more"
