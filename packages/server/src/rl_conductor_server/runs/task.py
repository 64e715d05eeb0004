"""`RunTask`: executes one admitted request and records it in the store, budgets and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rl_conductor.calls.budget import NOTHING, Amount, Budget
from rl_conductor.calls.scope import call_scope
from rl_conductor.errors import ConductorError, RefusedError, RunError
from rl_conductor.trace.events import AnswerDelta, Event, Finished, ReasoningDelta, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage, total
from rl_conductor_server.errors import ApiError, overload_error
from rl_conductor_server.logs import leave_out_reasons
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.runs.budgets import RunBudget
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.refusals import refusal_error, with_refusal
from rl_conductor_server.runs.request import AdmittedRequest
from rl_conductor_server.runs.run_queue import RunQueue
from rl_conductor_server.runs.tool_continuation import restore_context
from rl_conductor_server.store import PLAN_POSITION, REDACTED_ERROR, Claim, NewRun, Status, Store

log = logging.getLogger("rl_conductor_server.runs")

MAX_CAUSE_CHARS = 500


@dataclass
class RunTask:
    """The execution of one admitted request."""

    request: AdmittedRequest
    handle: RunHandle
    claim: Claim
    new: NewRun
    store: Store
    metrics: Metrics
    on_answer: Callable[[AdmittedRequest, Trace], None]
    trace: Trace | None = None
    rejection: ApiError | None = None
    """Why there is no answer, if the trace does not show it, as when the key's budget refused a call."""
    run_budget: RunBudget = field(default_factory=RunBudget)
    """Counts the charges of the run, also if the key has no budget."""
    usage: dict[tuple[int, int], Usage] = field(default_factory=dict)
    """Usage by round and step, planning included."""
    is_streaming: bool = False
    """`True` once text of the answer was sent."""
    started: float = field(default_factory=time.monotonic)
    must_store_end: bool = field(init=False)
    """`True` while the store has the run as running."""

    def __post_init__(self) -> None:
        self.must_store_end = self.request.continues_alone

    async def run(self, queue: RunQueue) -> Trace:
        """Returns the trace of a run with an answer, after storing it as durably as the caller needs."""
        try:
            async with queue.slot(self.request.key.name):
                try:
                    trace = await self._run()
                except ConductorError as error:
                    self.rejection = error if isinstance(error, ApiError) else None
                    await self._end()
                    raise
                await self._end()
                return trace
        except ApiError as error:  # also of a run that found no room in the queue
            self.rejection = error
            raise
        finally:
            self._close()

    async def _end(self) -> None:
        """Stores the end of the run, with backpressure: a result must not be sent long before it is durable."""
        self._close()
        if self._can_be_requested_again:
            await self.store.write_queue.flush()
        else:
            await self.store.write_queue.throttle()

    async def _run(self) -> Trace:
        if self.request.may_store_content and self.claim.outcome == "new":
            self.request.key.check_storage()
        is_resumed = self.claim.outcome == "resumed"  # perhaps days later, when the budget of its first day is no more
        key_budget = await self.request.key.current(self.store.now() if is_resumed else self.claim.created)
        if not self.must_store_end:
            await self.store.write_queue.throttle()
            self.store.begin_run(self.new)
            self.must_store_end = True
        self._nest_budgets(key_budget)
        try:
            return await self._run_conductor()
        except RefusedError as error:
            if self.trace is None or self.trace.completion is None:
                raise refusal_error(error) from error
            return self.trace
        except RunError as error:
            if overload_error(error.trace) is None:  # otherwise a later request may succeed within the same budget
                self.run_budget.check_key_budget(error)
                if self.request.shared_limits is not None:
                    self.request.shared_limits.check(error)
            raise

    def _nest_budgets(self, key_budget: Budget | None) -> None:
        """Nests the budgets of the key, of all choices and of this run, so that each call is charged to all three."""
        earlier, parent = self.claim.charged, key_budget
        if self.request.shared_limits is not None:
            self.request.shared_limits.charge(earlier)
            parent = self.request.shared_limits.budget(parent)
        self.run_budget = RunBudget(parent, on_reserved=None if key_budget is None else self._save_reservation)
        self.run_budget.charge(earlier)

    async def _run_conductor(self) -> Trace:
        admitted = self.request
        request = await restore_context(admitted.request, self.store, key=admitted.key.name)
        with (
            self.metrics.track_running(admitted.metrics_label),
            call_scope(budget=self.run_budget),
            leave_out_reasons(when=not admitted.parsed.keep),
        ):
            return await admitted.model.conductor.run(
                request,
                resume=self.claim.rounds,
                policy=admitted.policy,
                limits=admitted.limits,
                on_event=self._on_event,
                stream=admitted.parsed.stream,
                run_id=self.handle.id,
            )

    def _save_reservation(self, charged: Amount, reserved: Amount) -> None:
        self.store.save_reservation(self.handle.id, charged, reserved)

    @property
    def _can_be_requested_again(self) -> bool:
        """`True` if the caller may request this run again, perhaps from another process."""
        completion = self.trace.completion if self.trace else None
        calls_tools = bool(completion and completion.message.tool_calls)
        return self.request.continues_alone or (calls_tools and not self.request.is_comparison)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ReasoningDelta):  # no response contains reasoning
            return
        if isinstance(event, Finished):
            if event.trace.completion is None:
                event = Finished(trace=with_refusal(event.trace, self.request.api))
            self.trace = event.trace
        elif isinstance(event, WorkflowPlanned | StepFinished):
            self._record(event)
        elif isinstance(event, AnswerDelta) and not self.is_streaming:
            self.is_streaming = True
            if self.request.parsed.stream:
                self.metrics.observe_first_token(self.request.metrics_label, time.monotonic() - self.started)
        self.handle.publish(event)

    def _record(self, event: WorkflowPlanned | StepFinished) -> None:
        if isinstance(event, WorkflowPlanned):
            position, calls = PLAN_POSITION, event.plan.calls
        else:
            position, calls = event.result.index, event.result.calls
        self.usage[event.round, position] = total(call.usage for call in calls)
        # Only a run with an idempotency key can be resumed from its steps.
        keep = self.request.parsed.keep or self.request.idempotency_key is not None
        budget = self.run_budget
        self.store.save_progress(
            self.handle.id,
            event,
            total(self.usage.values()),
            budget.spent,
            reserved=NOTHING if budget.on_reserved is None else budget.reserved,
            store_content=keep,
        )

    def _close(self) -> None:
        if not self.must_store_end:
            return
        self.must_store_end = False
        error_code = None if self.rejection is None else self.rejection.code
        if self.trace is None:
            error = None if self.rejection is None else str(self.rejection)
            self.store.abandon_run(self.handle.id, error=error, error_code=error_code)
            return
        completion = self.trace.completion
        has_answer = completion is not None
        status: Status = "done" if has_answer else "cancelled" if self.trace.was_cancelled else "failed"
        keep = self.request.parsed.keep or self._can_be_requested_again
        self.store.finish_run(
            self.handle.id,
            self.trace,
            status,
            charged=self.run_budget.spent,
            store_content=keep,
            error_code=error_code,
            answer_writes=self.handle.answer_writes(self.trace) if has_answer else (),
            source=self.new.source,
        )
        self.metrics.count_run(self.request.metrics_label, self.trace)
        self._log_end(self.trace, status)
        if completion is not None and not (completion.finish_reason == "content_filter" and self.trace.refusal):
            self.on_answer(self.request, self.trace)

    def _log_end(self, trace: Trace, status: Status) -> None:
        error = trace.error
        if error is not None and not self.request.parsed.keep:  # it may quote the conversation
            error = REDACTED_ERROR
        fields = {
            "run": trace.id,
            "key": self.request.key.name,
            "model": self.request.metrics_label,
            "status": status,
            "seconds": round(trace.seconds, 4),
            "calls": trace.usage.calls,
            "usd": f"{trace.usage.cost:f}",
            "cause": None if error is None else error[:MAX_CAUSE_CHARS],
        }
        log.info("run ended", extra=fields)
