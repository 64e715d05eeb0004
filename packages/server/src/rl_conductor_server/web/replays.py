"""Replays a run with one step changed: another worker, or another subtask.

Only the changed step and the steps that depend on it run again; the others reuse their replies at no cost. Otherwise a
replay is a run like any other: it waits for admission, spends from the key's budget, and obeys both the original run's
policy and limits and those in force now.
"""

from __future__ import annotations

from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.replay import StepChange, rounds_before
from rl_conductor.trace.trace import Trace
from rl_conductor_server.errors import ApiError
from rl_conductor_server.parsed_request import Extension, ParsedRequest
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.request import admit
from rl_conductor_server.service import Service
from rl_conductor_server.store import RunRow
from rl_conductor_server.store.models import REPLAY, REPLAY_OF

CHANGED = "changed"
"""The label of a replay that describes the change."""


def parse_change(fields: dict[str, str]) -> StepChange:
    """Reads the change from the replay form.

    Raises:
        ApiError: a field is missing or invalid.
    """
    try:
        return StepChange.model_validate({name: fields[name] for name in StepChange.model_fields})
    except (KeyError, ValidationError):
        raise ApiError("Give round, step, worker and subtask.", status=400, code="invalid_value") from None


async def start_replay(service: Service, row: RunRow, trace: Trace, change: StepChange) -> RunHandle:
    """Starts the replay on the budget of the original run's key.

    Raises:
        ConductorError: the policy forbids it, the key may no longer use the model, or there is no such step.
    """
    try:
        previous_rounds = rounds_before(trace, change)
    except ConfigError:
        raise ApiError("There is no such step to change.", status=404, code="step_not_found") from None
    key = await service.keys.load(row.key)
    key.check_rate()
    model = service.experiments.select_model(row.arm, key.find_model(service.catalog, row.model))
    parsed = ParsedRequest(
        model=row.model,
        request=trace.request,
        extension=Extension(policy=trace.policy, limits=trace.limits),
        labels={REPLAY_OF: row.id, CHANGED: _describe(trace, change)},
    )
    (request,) = admit(key, model, REPLAY, parsed, idempotency_key=None)
    return await service.runs.start(request, rounds=previous_rounds)


def _describe(trace: Trace, change: StepChange) -> str:
    step = trace.rounds[change.round].results[change.step].step
    changes = []
    if change.worker != step.worker:
        changes.append(f"{change.worker} instead of {step.worker}")
    if change.subtask != step.subtask:
        changes.append("a new subtask")
    return f"round {change.round + 1}, step {change.step + 1}: {' and '.join(changes) or 'run again unchanged'}"
