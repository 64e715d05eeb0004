"""Runs a trace again from its recorded replies: the same planner, prompts and executor, and no model at all.

Nothing is spent and no time is waited, so limits and deadlines are not checked anew: what they refused then is
refused again because it is in the recording. `differences` says where the two runs part.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rl_conductor.calls.budget import Ledger
from rl_conductor.calls.model_call import Caller
from rl_conductor.errors import (
    BadRequestError,
    ConductorError,
    ConfigError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    RunError,
)
from rl_conductor.execution.run import Run
from rl_conductor.models.base import Capabilities
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.text.delimiters import without_marks
from rl_conductor.trace.events import ignore
from rl_conductor.trace.trace import Call, Round, Setup, StepResult, Trace, fingerprint
from rl_conductor.types import FREE, Completion, Delta, Price, Request
from rl_conductor.workflow.limits import Limits

NOT_RECORDED = "the recording holds no reply to this request"
CUT_SHORT = "it was cut short then, and is now"
"""Of calls that were cancelled, such as the slower of two: nothing came of them, so they are not compared."""
PIECE = "..."
"""What a reply that broke off begins with: what was really said of it is not in the recording."""
AT_ONCE = 1e-6
"""Seconds between two attempts of a replay."""
SHOWN = 40
"""Characters that are quoted on each side of where two requests part."""


async def replay(trace: Trace) -> Trace:
    """The run of `trace` once more, each call answered from its recording.

    A request that the recording has no reply to fails as a call that its model refused, and `differences` shows it.

    Raises:
        ConfigError: the trace does not hold what a replay needs; the message says what is missing.
    """
    setup = _replayable(trace)
    run = _run(trace, setup, Recording(trace))
    first = trace.rounds[0].plan if trace.rounds else None
    try:
        return await run.go(first.workflow if first and first.source == "given" else None)
    except RunError as failed:
        return failed.trace


def _replayable(trace: Trace) -> Setup:
    if trace.setup is None:
        raise ConfigError("the trace can't be replayed: it does not say what planner and pool it was made with")
    if trace.completion is None and trace.error == "cancelled":
        raise ConfigError("the trace can't be replayed: its run was cut short, so the recording is not whole")
    return trace.setup


def _run(trace: Trace, setup: Setup, recording: Recording) -> Run:
    asked = setup.planner
    planner = Planner(
        model=RecordedModel(trace.planner, asked.can, recording),
        form=asked.form,
        roster=asked.roster,
        examples=asked.examples,
        samples=asked.samples,
        repair=asked.repair,
        sampling=asked.sampling,
        card=asked.card,
    )
    workers = (
        Worker(
            name=worker.card.name,
            model=RecordedModel(worker.model, worker.can, recording),
            card=worker.card,
            sampling=worker.sampling,
        )
        for worker in setup.workers
    )
    run = Run(
        planner=planner,
        pool=WorkerPool(workers),
        request=trace.request,
        policy=trace.policy,
        limits=trace.limits,
        emit=ignore,
        access=setup.access,
        stream=True,
        fence_key=trace.fence_key,
        before=[Round(plan=one.plan) for one in trace.rounds[:1] if one.plan.source == "tier"],
    )
    kept = any(call.request for call in trace.calls())
    run.caller = Caller(Ledger(Limits()), retries=setup.retries, keep_prompts=kept)
    return run


# ----------------------------------------------------------------------------------- the recording


class Recording:
    """The calls of a trace by model and fingerprint, those of equal requests in their order."""

    def __init__(self, trace: Trace) -> None:
        self._left: dict[tuple[str, str], deque[Call]] = defaultdict(deque)
        self._may_have_cost: set[str] = set()
        for call in trace.calls():
            self._left[call.model, call.fingerprint].append(call)
            if call.usage.unpriced_calls:
                self._may_have_cost.add(call.model)

    def take(self, model: str, request: Request) -> tuple[Call | None, bool]:
        """The next call of this request, and whether another one follows."""
        left = self._left[model, fingerprint(request)]
        call = left.popleft() if left else None
        return call, bool(left)

    def price(self, model: str) -> Price | None:
        """A price under which failed calls count as they did."""
        return None if model in self._may_have_cost else FREE


@dataclass
class RecordedModel:
    """A model that says and fails what a recording says it did."""

    name: str
    can: frozenset[str]
    recording: Recording

    @property
    def capabilities(self) -> Capabilities:
        """Those of the model that was recorded; the reasoning in its replies is split off already."""
        return Capabilities.model_validate({**dict.fromkeys(self.can, True), "reasoning_start": "outside"})

    @property
    def price(self) -> Price | None:
        """Nothing is paid; see `Recording.price`."""
        return self.recording.price(self.name)

    async def complete(self, request: Request) -> Completion:
        """The recorded reply."""
        return _reply(*self._take(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The recorded reply in one piece; of one that broke off, the beginning."""
        call, again = self._take(request)
        if call.broke_off:
            yield Delta(text=PIECE)
        completion = _reply(call, again)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    def _take(self, request: Request) -> tuple[Call, bool]:
        call, again = self.recording.take(self.name, request)
        if call is None:
            raise BadRequestError(f"{self.name}: {NOT_RECORDED}", model=self.name)
        return call, again

    async def aclose(self) -> None:
        """Nothing to close."""


def _reply(call: Call, again: bool) -> Completion:
    if call.completion is None:
        raise _failure(call, again=again)
    return call.completion


def _failure(call: Call, *, again: bool) -> ConductorError:
    """What the recorded call raised, and such that it is retried exactly when it was."""
    message = call.error or call.outcome
    if call.outcome == "cancelled":
        return BadRequestError(CUT_SHORT, model=call.model)
    if call.outcome == "refused":
        return LimitError(message, limit="calls", needed=0, left=0)
    if call.outcome == "timeout" and not call.retryable:
        return LimitError(message, limit="seconds", needed=0, left=0)
    kind = ModelTimeoutError if call.outcome == "timeout" else ModelError
    return kind(
        message,
        model=call.model,
        status=None if call.usage.unpriced_calls else 429,
        retryable=call.retryable,
        retry_after=AT_ONCE if again else math.inf,
    )


# ----------------------------------------------------------------------------------- what differs


def differences(recorded: Trace, replayed: Trace) -> tuple[str, ...]:
    """Where the two runs part, in words; empty when they are the same but for their times."""
    return tuple(_differences(recorded, replayed))


def _differences(recorded: Trace, replayed: Trace) -> Iterator[str]:
    if recorded.versions.prompt != replayed.versions.prompt:
        yield (
            f"the texts that models are told have changed since: {recorded.versions.prompt}, "
            f"now {replayed.versions.prompt}"
        )
    for number, (old, new) in enumerate(zip_longest(recorded.rounds, replayed.rounds), 1):
        if old is None or new is None:
            yield f"round {number}: " + ("there was none" if old is None else "it does not take place")
        else:
            yield from _round_differences(old, new, f"round {number}, ")
    if recorded.answer != replayed.answer:
        yield f"the answer came from {recorded.answer}, now from {replayed.answer}"
    if (recorded.completion is None) != (replayed.completion is None):
        yield "there was an answer" if replayed.completion is None else "there was no answer"


def _round_differences(old: Round, new: Round, where: str) -> Iterator[str]:
    yield from _call_differences(old.plan.calls, new.plan.calls, f"{where}planner")
    if _plan(old) != _plan(new):
        yield f"{where}planner: another plan came of it"
    for before, now in zip_longest(old.results, new.results):
        if before is None or now is None:
            yield f"{where}step {(before or now).index + 1}: " + ("there was none" if before is None else "it is gone")
        else:
            yield from _step_differences(before, now, f"{where}step {now.index + 1}")


def _plan(one: Round) -> tuple[object, ...]:
    return one.plan.source, one.plan.text, one.plan.workflow


def _step_differences(old: StepResult, new: StepResult, where: str) -> Iterator[str]:
    yield from _call_differences(old.calls, new.calls, where)
    if (old.status, old.step.worker) != (new.status, new.step.worker):
        yield f"{where}: {old.status} by {old.step.worker!r}, now {new.status} by {new.step.worker!r}"
    elif old.reply != new.reply:
        yield f"{where}: another reply"


def _call_differences(old: tuple[Call, ...], new: tuple[Call, ...], where: str) -> Iterator[str]:
    for before, now in zip_longest(_whole(old), _whole(new)):
        if before is None or now is None:
            yield f"{where}: " + ("a call too many" if before is None else f"{before.model} was not called again")
        elif (before.model, before.fingerprint) != (now.model, now.fingerprint):
            yield f"{where}: {now.model} was asked something else{_parting(before, now)}"
        elif (before.outcome, before.error) != (now.outcome, now.error):
            yield f"{where}: {before.outcome} ({before.error}), now {now.outcome} ({now.error})"


def _whole(calls: tuple[Call, ...]) -> list[Call]:
    return [call for call in calls if call.outcome != "cancelled" and call.error != CUT_SHORT]


def _parting(old: Call, new: Call) -> str:
    """Where two requests part, as far as they were kept."""
    if old.request is None or new.request is None:
        return "; what exactly can't be said, because the trace keeps no requests"
    if fingerprint(old.request) != old.fingerprint:
        return "; what was recorded as asked then does not match its own fingerprint"
    before, now = (
        without_marks(call.request.model_dump_json(exclude={"timeout"})) for call in (old, new) if call.request
    )
    if before == now:
        return ": only the marks of its fences differ"
    parting = next(i for i, (a, b) in enumerate(zip_longest(before, now)) if a != b)
    shown = slice(max(0, parting - SHOWN), parting + SHOWN)
    return f": ...{before[shown]}... is now ...{now[shown]}..."
