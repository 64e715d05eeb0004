"""Compares a replayed run with the recorded one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from math import inf

from rl_conductor.replay.recording import WAS_CANCELLED
from rl_conductor.text.delimiters import strip_nonces
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.trace import Call, Round, StepResult, Trace

CONTEXT_CHARS = 40
"""Characters quoted before and after the first difference between two requests."""


def differences(recorded: Trace, replayed: Trace) -> tuple[str, ...]:
    """Describes the differences between two runs except for their times; empty if there are none."""
    return tuple(_differences(recorded, replayed))


def _differences(recorded: Trace, replayed: Trace) -> Iterator[str]:
    if recorded.versions.prompt != replayed.versions.prompt:
        yield (f"the prompt templates have changed: version {recorded.versions.prompt}, now {replayed.versions.prompt}")
    finished = [round_ for round_ in recorded.rounds if round_.plan.is_complete or CANCELLED not in round_.plan.errors]
    for number, (old, new) in enumerate(zip_longest(finished, replayed.rounds), 1):
        if old is None or new is None:
            yield f"round {number}: " + ("not in the recording" if old is None else "missing in the replay")
        else:
            yield from _round_differences(old, new, f"round {number}, ")
    if recorded.answer != replayed.answer:
        yield f"the answer came from {recorded.answer}, now from {replayed.answer}"
    if (recorded.completion is None) != (replayed.completion is None):
        yield "only the recording has an answer" if replayed.completion is None else "only the replay has an answer"


def _round_differences(old: Round, new: Round, where: str) -> Iterator[str]:
    yield from _call_differences(_comparable(old.plan.calls), _comparable(new.plan.calls), f"{where}planner")
    if _plan_key(old) != _plan_key(new):
        yield f"{where}planner: the plan differs"
    for before, now in zip_longest(old.results, new.results):
        if before is None or now is None:
            state = "not in the recording" if before is None else "missing in the replay"
            yield f"{where}step {(before or now).index + 1}: {state}"
        else:
            yield from _step_differences(before, now, f"{where}step {now.index + 1}")


def _plan_key(planned: Round) -> tuple[object, ...]:
    return planned.plan.source, planned.plan.text, planned.plan.workflow


def _step_differences(old: StepResult, new: StepResult, where: str) -> Iterator[str]:
    yield from _call_differences(_comparable_in_step(old), _comparable_in_step(new), where)
    is_by_another = old.status == "ok" and old.step.worker != new.step.worker  # who failed last depends on hedges
    if old.status != new.status or is_by_another:
        yield f"{where}: {old.status} by {old.step.worker!r}, now {new.status} by {new.step.worker!r}"
    elif old.reply != new.reply:
        yield f"{where}: the reply differs"


def _call_differences(old: list[Call], new: list[Call], where: str) -> Iterator[str]:
    for before, now in zip_longest(old, new):
        if before is None or now is None:
            yield f"{where}: " + ("an additional call" if before is None else f"{before.model} was not called")
        elif (before.model, before.request_fingerprint) != (now.model, now.request_fingerprint):
            yield f"{where}: the request to {now.model} differs{_first_difference(before, now)}"
        elif (before.outcome, before.error) != (now.outcome, now.error):
            yield f"{where}: {before.outcome} ({before.error}), now {now.outcome} ({now.error})"


def _comparable(calls: tuple[Call, ...]) -> list[Call]:
    return [call for call in calls if call.outcome != "cancelled" and call.error != WAS_CANCELLED and not call.is_check]


def _comparable_in_step(result: StepResult) -> list[Call]:
    """Returns the calls that led to the result, in the order of a replay, which calls one worker after the other.

    Hedged calls change that order, and those that failed while the worker that answered was at work had no effect.
    """
    calls = _comparable(result.calls)
    began: dict[str | None, float] = {}
    for call in calls:
        began[call.worker] = min(call.started, began.get(call.worker, call.started))
    last = began.get(result.step.worker, inf) if result.status == "ok" else inf
    return sorted((call for call in calls if began[call.worker] <= last), key=lambda call: began[call.worker])


def _first_difference(old: Call, new: Call) -> str:
    """Quotes the first difference between two requests, if the traces contain them."""
    if old.request is None or new.request is None:
        return "; the trace contains no requests to compare"
    before, now = (
        strip_nonces(call.request.model_dump_json(exclude={"timeout"})) for call in (old, new) if call.request
    )
    if before == now:
        return " only in the nonces of its delimiters"
    position = next(i for i, (a, b) in enumerate(zip_longest(before, now)) if a != b)
    context = slice(max(0, position - CONTEXT_CHARS), position + CONTEXT_CHARS)
    return f": ...{before[context]}... is now ...{now[context]}..."
