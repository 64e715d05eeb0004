"""Replays a trace: from its recorded replies without model calls, or with one step changed.

`replay` uses the real planner, prompts and executor. It costs nothing and does not wait, so limits and deadlines are
not enforced again: calls that they rejected are rejected again because the recording says so. `differences` compares
the two runs.

`replay_changed` runs one step with another worker or subtask, and the steps that depend on it; the others reuse their
replies.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from pydantic import Field

from rl_conductor.calls.budget import Budget
from rl_conductor.calls.context import RunContext
from rl_conductor.conductor import Conductor
from rl_conductor.errors import (
    BadRequestError,
    ConductorError,
    ConfigError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    OutputLimitError,
    RunError,
)
from rl_conductor.execution.run import Run
from rl_conductor.models.base import Capabilities
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.text.delimiters import strip_nonces
from rl_conductor.trace.events import Listener
from rl_conductor.trace.trace import Call, PlanRecord, Round, Setup, StepResult, Trace, fingerprint
from rl_conductor.types import FREE, Completion, Delta, Price, Request, Usage, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow

NOT_RECORDED = "the recording contains no reply to this request"
CANCELLED = "the recorded call was cancelled"
"""The error of replayed calls whose recording was cancelled, such as the slower of two hedged calls. They had no effect
and are not compared."""
PARTIAL_REPLY = "..."
"""Stands for the text of a reply that broke off, which traces do not record."""
RETRY_DELAY = 1e-6
"""Seconds between two attempts of a replayed call."""
CONTEXT_CHARS = 40
"""Characters quoted before and after the first difference between two requests."""


async def replay(trace: Trace) -> Trace:
    """Runs `trace` again, answering each call from its recording, and returns the new trace.

    A request without a recorded reply fails with `BadRequestError`, and `differences` reports it.

    Raises:
        ConfigError: the trace has no setup, its run was cancelled, or a guardrail kept texts out of it.
    """
    setup = _check_replayable(trace)
    run = _create_run(trace, setup, Recording(trace))
    first = trace.rounds[0].plan if trace.rounds else None
    try:
        return await run.run(first.workflow if first and first.source == "given" else None)
    except RunError as failed:
        return failed.trace


def _check_replayable(trace: Trace) -> Setup:
    if trace.setup is None:
        raise ConfigError("the trace can't be replayed: it has no setup, which describes the planner and pool")
    if trace.completion is None and trace.error == "cancelled":
        raise ConfigError("the trace can't be replayed: its run was cancelled, so the recording is incomplete")
    for check in trace.checks():
        if check.is_blocking or (check.stage, check.outcome) == ("prompt", "redacted"):
            raise ConfigError(f"the trace can't be replayed, because texts are not in it: {check.in_words}")
    return trace.setup


def _create_run(trace: Trace, setup: Setup, recording: Recording) -> Run:
    planner = Planner(
        model=RecordedModel(trace.planner, setup.planner.can, recording, setup.planner.context),
        form=setup.planner.form,
        roster=setup.planner.roster,
        examples=setup.planner.examples,
        instructions=setup.planner.instructions,
        samples=setup.planner.samples,
        repair=setup.planner.repair,
        sampling=setup.planner.sampling,
        card=setup.planner.card,
    )
    workers = (
        Worker(
            name=worker.card.name,
            model=RecordedModel(worker.model, worker.can, recording, worker.context),
            card=worker.card,
            sampling=worker.sampling,
            instructions=worker.instructions,
        )
        for worker in setup.workers
    )
    context = RunContext(
        limits=trace.limits,
        retries=setup.retries,
        keep_prompts=any(call.request for call in trace.calls()),
        fence_key=trace.fence_key,
    )
    context.budget = Budget(Limits())  # replies are replayed, so nothing is spent
    return Run(
        context=context,
        planner=planner,
        pool=WorkerPool(workers),
        request=trace.request,
        policy=trace.policy,
        access=setup.access,
        stream=True,
        previous_rounds=[Round(plan=one.plan) for one in trace.rounds[:1] if one.plan.source in ("tier", "learned")],
    )


# ----------------------------------------------------------------------------------- the recording


class Recording:
    """The calls of a trace, queued by model and request fingerprint in their recorded order."""

    def __init__(self, trace: Trace) -> None:
        self._queues: dict[tuple[str, str], deque[Call]] = defaultdict(deque)
        self._models_with_unpriced_calls: set[str] = set()
        for call in trace.calls():
            self._queues[call.model, call.fingerprint].append(call)
            if call.usage.unpriced_calls:
                self._models_with_unpriced_calls.add(call.model)

    def take(self, model: str, request: Request) -> tuple[Call | None, bool]:
        """Removes and returns the next recorded call of this request, and whether another one follows."""
        queue = self._queues[model, fingerprint(request)]
        call = queue.popleft() if queue else None
        return call, bool(queue)

    def price(self, model: str) -> Price | None:
        """Returns the price under which failed calls count as unpriced if the recorded ones did."""
        return None if model in self._models_with_unpriced_calls else FREE


@dataclass
class RecordedModel:
    """A model that repeats its recorded replies and errors."""

    name: str
    can: frozenset[str]
    recording: Recording
    context: int | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the recorded model, except that its replies no longer contain reasoning."""
        fields = {**dict.fromkeys(self.can, True), "reasoning_start": "outside", "context": self.context}
        return Capabilities.model_validate(fields)

    @property
    def price(self) -> Price | None:
        """Free, or unknown if the recorded model's was; see `Recording.price`."""
        return self.recording.price(self.name)

    async def complete(self, request: Request) -> Completion:
        """Returns the recorded reply or raises the recorded error."""
        return _completion_or_raise(*self._take(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the recorded reply in one delta, or `PARTIAL_REPLY` before an error that broke it off."""
        call, is_retried = self._take(request)
        if call.broke_off:
            yield Delta(text=PARTIAL_REPLY)
        completion = _completion_or_raise(call, is_retried)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    def _take(self, request: Request) -> tuple[Call, bool]:
        call, is_retried = self.recording.take(self.name, request)
        if call is None:
            raise BadRequestError(f"{self.name}: {NOT_RECORDED}", model=self.name)
        return call, is_retried

    async def aclose(self) -> None:
        """Does nothing, because there is no connection to close."""


def _completion_or_raise(call: Call, is_retried: bool) -> Completion:
    if call.completion is None:
        raise _recorded_error(call, is_retried=is_retried)
    return call.completion


def _recorded_error(call: Call, *, is_retried: bool) -> ConductorError:
    """Recreates the error of a recorded call so that it is retried exactly if the recorded one was."""
    message = call.error or call.outcome
    if call.outcome == "cancelled":
        return BadRequestError(CANCELLED, model=call.model)
    if call.outcome == "refused":
        return LimitError(message, limit="calls", needed=0, remaining=0)
    if call.outcome == "timeout" and not call.retryable:
        return LimitError(message, limit="seconds", needed=0, remaining=0)
    if call.out_of_tokens:
        return OutputLimitError(message, model=call.model, status=None if call.usage.unpriced_calls else 429)
    error_type = ModelTimeoutError if call.outcome == "timeout" else ModelError
    error = error_type(
        message,
        model=call.model,
        status=call.status or (None if call.usage.unpriced_calls else 429),
        retryable=call.retryable,
        retry_after=RETRY_DELAY if is_retried else math.inf,
    )
    error.min_retries = int(is_retried)
    return error


# ---------------------------------------------------------------------------------- changed replays


class StepChange(Value):
    """A new worker, subtask or both for one step; rounds and steps count from 0, and `None` keeps a part."""

    round: int = Field(default=0, ge=0)
    step: int = Field(ge=0)
    worker: str | None = Field(default=None, min_length=1)
    subtask: str | None = Field(default=None, min_length=1)


async def replay_changed(
    conductor: Conductor,
    trace: Trace,
    change: StepChange,
    *,
    policy: Policy | None = None,
    limits: Limits | None = None,
    on_event: Listener | None = None,
) -> Trace:
    """Runs `trace` again with one step changed, and returns the new trace.

    Only the changed step and the steps that depend on it call models. The others reuse their replies at no cost, with a
    usage of 0 in the new trace. Later rounds are planned anew if the limits allow another round.

    Args:
        conductor: the conductor to run it with; usually the one that made the trace.
        trace: the original run.
        change: the step and its new worker, subtask or both.
        policy: replaces the policy of the original run.
        limits: replaces the limits of the original run.
        on_event: called with every event as it happens.

    Raises:
        ConfigError: there is no such step, or it can't be changed.
        WorkflowValidationError: the policy does not allow the changed plan, or the pool has no such worker.
        RunError: there is no answer; `error.trace` contains the errors and the usage.
    """
    previous_rounds = rounds_before(trace, change)
    workflow = previous_rounds[-1].plan.workflow
    policy, limits = Policy.require(policy, trace.policy), Limits.require(limits, trace.limits)
    if workflow is not None:  # `run` would plan anew instead of raising an error for a plan that is not allowed
        conductor.stepwise(trace.request, workflow, before=previous_rounds[:-1], policy=policy, limits=limits)
    return await conductor.run(trace.request, resume=previous_rounds, policy=policy, limits=limits, on_event=on_event)


def rounds_before(trace: Trace, change: StepChange) -> tuple[Round, ...]:
    """Returns the rounds that a changed replay resumes from.

    These are the earlier rounds, and the changed one without the results that the change affects. Calls in them have no
    usage, because the original run paid for them.

    Raises:
        ConfigError: there is no such step, or it can't be changed.
    """
    if not is_changeable(trace, change.round) or change.step >= len(trace.rounds[change.round].results):
        raise ConfigError(
            f"the trace has no step {change.step} of round {change.round} that can be changed; both count from 0, and "
            "the round needs a plan and a result for every step"
        )
    changed_round = trace.rounds[change.round]
    steps = [result.step for result in changed_round.results]
    update = {name: value for name in ("worker", "subtask") if (value := getattr(change, name)) is not None}
    steps[change.step] = steps[change.step].model_copy(update=update)
    workflow = Workflow(steps=tuple(steps))
    reused_results = tuple(
        _without_usage(result)
        for result in changed_round.results
        if result.index != change.step and change.step not in workflow.sources[result.index] and result.status == "ok"
    )
    return (
        *map(_round_without_usage, trace.rounds[: change.round]),
        Round(plan=PlanRecord(source="given", workflow=workflow), results=reused_results),
    )


def is_changeable(trace: Trace, round_index: int) -> bool:
    """Whether the round was planned and every step of it has a result, so that one of them can be changed."""
    if round_index >= len(trace.rounds):
        return False
    plan, results = trace.rounds[round_index].plan, trace.rounds[round_index].results
    is_planned = plan.workflow is not None and plan.source != "continuation"
    return is_planned and trace.error != "cancelled" and bool(results)


def _round_without_usage(round_: Round) -> Round:
    plan = round_.plan.model_copy(update={"calls": _calls_without_usage(round_.plan.calls)})
    return round_.model_copy(update={"plan": plan, "results": tuple(map(_without_usage, round_.results))})


def _without_usage(result: StepResult) -> StepResult:
    return result.model_copy(update={"calls": _calls_without_usage(result.calls)})


def _calls_without_usage(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(call.model_copy(update={"usage": Usage()}) for call in calls)


# ----------------------------------------------------------------------------------- differences


def differences(recorded: Trace, replayed: Trace) -> tuple[str, ...]:
    """Describes the differences between two runs except for their times; empty if there are none."""
    return tuple(_differences(recorded, replayed))


def _differences(recorded: Trace, replayed: Trace) -> Iterator[str]:
    if recorded.versions.prompt != replayed.versions.prompt:
        yield (f"the prompt templates have changed: version {recorded.versions.prompt}, now {replayed.versions.prompt}")
    for number, (old, new) in enumerate(zip_longest(recorded.rounds, replayed.rounds), 1):
        if old is None or new is None:
            yield f"round {number}: " + ("not in the recording" if old is None else "missing in the replay")
        else:
            yield from _round_differences(old, new, f"round {number}, ")
    if recorded.answer != replayed.answer:
        yield f"the answer came from {recorded.answer}, now from {replayed.answer}"
    if (recorded.completion is None) != (replayed.completion is None):
        yield "only the recording has an answer" if replayed.completion is None else "only the replay has an answer"


def _round_differences(old: Round, new: Round, where: str) -> Iterator[str]:
    yield from _call_differences(old.plan.calls, new.plan.calls, f"{where}planner")
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
    yield from _call_differences(old.calls, new.calls, where)
    if (old.status, old.step.worker) != (new.status, new.step.worker):
        yield f"{where}: {old.status} by {old.step.worker!r}, now {new.status} by {new.step.worker!r}"
    elif old.reply != new.reply:
        yield f"{where}: the reply differs"


def _call_differences(old: tuple[Call, ...], new: tuple[Call, ...], where: str) -> Iterator[str]:
    for before, now in zip_longest(_comparable(old), _comparable(new)):
        if before is None or now is None:
            yield f"{where}: " + ("an additional call" if before is None else f"{before.model} was not called")
        elif (before.model, before.fingerprint) != (now.model, now.fingerprint):
            yield f"{where}: the request to {now.model} differs{_first_difference(before, now)}"
        elif (before.outcome, before.error) != (now.outcome, now.error):
            yield f"{where}: {before.outcome} ({before.error}), now {now.outcome} ({now.error})"


def _comparable(calls: tuple[Call, ...]) -> list[Call]:
    return [call for call in calls if call.outcome != "cancelled" and call.error != CANCELLED and not call.is_check]


def _first_difference(old: Call, new: Call) -> str:
    """Quotes the first difference between two requests, if the traces contain them."""
    if old.request is None or new.request is None:
        return "; the trace contains no requests to compare"
    if fingerprint(old.request) != old.fingerprint:
        return "; the recorded request does not match its own fingerprint"
    before, now = (
        strip_nonces(call.request.model_dump_json(exclude={"timeout"})) for call in (old, new) if call.request
    )
    if before == now:
        return " only in the nonces of its delimiters"
    position = next(i for i, (a, b) in enumerate(zip_longest(before, now)) if a != b)
    context = slice(max(0, position - CONTEXT_CHARS), position + CONTEXT_CHARS)
    return f": ...{before[context]}... is now ...{now[context]}..."
