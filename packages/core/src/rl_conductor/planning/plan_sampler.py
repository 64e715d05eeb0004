"""`PlanSampler`: samples plans of a planner's model until one is valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_conductor.calls.model_call import ModelCall
from rl_conductor.errors import (
    ConductorError,
    ContextLengthError,
    ModelError,
    OutputLimitError,
    WorkflowError,
    WorkflowParseError,
)
from rl_conductor.plan_text.extract import SEPARATE_STEPS
from rl_conductor.plan_text.forms import Plan
from rl_conductor.plan_text.lenient_json import CLOSED, UNENDED
from rl_conductor.plan_text.parser import parse
from rl_conductor.planning.plan_stream import PlanItem, PlanRequest
from rl_conductor.planning.stream_watcher import StreamWatcher
from rl_conductor.prompting.planner_prompt import Rejection, rejection_messages
from rl_conductor.trace.events import PlanRejected
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.types import Completion, Message, Request, ResponseFormat
from rl_conductor.workflow.request_tokens import raised_max_tokens

if TYPE_CHECKING:
    from rl_conductor.planning.planner import Planner

PLANNING_SHARE = 0.5
"""Share of the remaining time that planning a round may take, all samples together; the rest is for the steps."""


@dataclass
class PlanSampler:
    """Samples plans until one is valid, feeding each rejection back to the model."""

    planner: Planner
    plan_request: PlanRequest
    response_format: ResponseFormat | None
    prompt: Sequence[Message]
    rejection: Rejection | None = None
    """The last rejected plan and the reason."""
    shortened: PlanRecord | None = None
    """The last rejected plan that became valid when it was shortened, in its shortened form."""
    max_tokens: int | None = None
    """The raised limit of a planner that had used up its own without a plan."""
    deadline: float | None = None
    """Deadline of planning, in seconds since the start of the run; `None` without a limit."""

    async def run(self, send: Callable[[PlanItem], None]) -> None:
        """Sends the items of the plan stream."""
        send(await self._plan(send))

    async def _plan(self, send: Callable[[PlanItem], None]) -> PlanRecord:
        """Returns the first valid plan, else a shortened one, else a `fallback` record without a workflow."""
        plan_request = self.plan_request
        self.deadline = plan_request.run.deadline_after(PLANNING_SHARE)
        for sample in range(self.planner.samples):
            thinks_first = self.planner.model.capabilities.reasoning_start == "inside"
            watcher = StreamWatcher(plan_request, self.planner.plan_form, send, thinks_first)
            try:
                return await self._sample(sample, watcher)
            except ConductorError as error:
                plan_request.errors.append(str(error))
                calls = tuple(plan_request.calls)
                send(PlanRejected(round=plan_request.round_index, error=str(error), calls=calls))
                if error.ends_run:
                    raise
                if not self._prepare_next_sample(error, watcher):
                    break
        record = self.shortened or PlanRecord(source="fallback", form=self.planner.plan_form)
        return record.model_copy(update={"errors": tuple(plan_request.errors), "calls": tuple(plan_request.calls)})

    async def _sample(self, sample: int, watcher: StreamWatcher) -> PlanRecord:
        messages, run = self.prompt, self.plan_request.run
        if self.rejection is not None:
            messages = (*messages, *rejection_messages(self.rejection, key=run.delimiter_key))
        call = ModelCall(
            run=run,
            model=self.planner.model,
            request=self._request(messages, sample),
            calls=self.plan_request.calls,
            on_text=watcher.feed,
            reasoning=None,
            deadline=self.deadline,
            follow_up=self.plan_request.follow_up,
        )
        completion = await call.complete()
        try:
            return self._parse(completion, shorten=self.shortened is not None)
        except WorkflowError:
            with suppress(WorkflowError):
                self.shortened = self._parse(completion, shorten=True)
            raise

    def _request(self, messages: Sequence[Message], sample: int) -> Request:
        request = self.planner.request(messages, self.response_format, sample)
        if self.max_tokens is None:
            return request
        sampling = request.sampling.model_copy(update={"max_tokens": self.max_tokens})
        return request.model_copy(update={"sampling": sampling})

    def _parse(self, completion: Completion, *, shorten: bool) -> PlanRecord:
        text, space, planner = completion.text, self.plan_request.space, self.planner
        plan = parse(text, space, form=planner.plan_form, repair=planner.repair, shorten=shorten)
        if completion.finish_reason == "length" and _may_be_truncated(plan):
            max_tokens = planner.sampling.max_tokens
            raise WorkflowParseError(f"the plan was cut off at {max_tokens} tokens; write a shorter one", text=text)
        return PlanRecord(
            source="planner",
            text=text,
            reasoning=plan.reasoning,
            repairs=plan.repairs,
            errors=tuple(self.plan_request.errors),
            workflow=plan.workflow,
            form=plan.form,
            constrained=self.response_format is not None,
            calls=tuple(self.plan_request.calls),
        )

    def _prepare_next_sample(self, error: ConductorError, watcher: StreamWatcher) -> bool:
        """Changes the next request as `error` demands, and returns whether that can help.

        It can after an invalid plan or an interrupted stream. A call that failed before its first token was already
        retried.
        """
        if isinstance(error, OutputLimitError) and self.max_tokens is None:  # spent on reasoning
            self.max_tokens = raised_max_tokens(self._request(self.prompt, 0), self.planner.model.capabilities.context)
            return self.max_tokens is not None
        if isinstance(error, WorkflowError):
            self.rejection = Rejection(error.text, str(error))
            return True
        if isinstance(error, ContextLengthError) and self.rejection is not None:
            self.rejection = None  # without it the request fits: the first one did
            return True
        return isinstance(error, ModelError) and error.retryable and bool(watcher.pieces)


def _may_be_truncated(plan: Plan) -> bool:
    """Returns whether a text that reached the token limit may have ended before the last step of its plan."""
    return plan.form == "rows" or not {CLOSED, UNENDED, SEPARATE_STEPS}.isdisjoint(plan.repairs)
