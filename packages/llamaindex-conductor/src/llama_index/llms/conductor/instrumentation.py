"""Reports runs to LlamaIndex's instrumentation and callbacks: a span per model call, and an event per step of the run.

Each kind of observer gets every token once. Callback handlers get one LLM event with the usage of the whole run, and
none with that of runs inside it; handlers of the dispatcher get an LLM event with usage for every call inside it, and
none for the run itself.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatInProgressEvent, LLMChatStartEvent
from llama_index.core.llms import LLM
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id

from rl_conductor import Completion, DiscoveredPool, Event, Model, Planner, Request, Trace
from rl_conductor.integration import WrapperModel
from rl_conductor.trace import AnswerDelta, Finished, PlanDelta, ReasoningDelta
from rl_conductor.types import Delta

from .chat_responses import completion_response, trace_response, without_usage
from .messages import chat_message
from .models.llm_model import LLMModel
from .models.nested_conductor import NestedConductorModel
from .models.task_model import TaskModel

dispatcher = get_dispatcher(__name__)

_handlers_of_run: ContextVar[tuple[BaseCallbackHandler, ...]] = ContextVar("conductor_handlers_of_run", default=())
"""The callback handlers that get the usage of the run around the current call."""


class ConductorEvent(BaseEvent):
    """An event of a run, except for the deltas of plans and answers."""

    event: Event
    """The event of the core."""

    @classmethod
    def class_name(cls) -> str:
        return "ConductorEvent"


# ---------------------------------------------------------------------------------- the whole call


@dataclass
class CallReporter:
    """Reports one call of the LLM and the events of its run."""

    llm: LLM
    messages: Sequence[ChatMessage]
    keywords: dict[str, Any]
    span_id: str | None
    """The span of the call, which has ended by the time that its stream is read."""
    trace: Trace | None = None
    """The trace of the run, set when it ends, also when it fails or is cancelled."""

    def __post_init__(self) -> None:
        self._event_id = str(uuid4())
        self._is_counted_outside = any(handler in _handlers_of_run.get() for handler in self._handlers)

    @property
    def _handlers(self) -> Sequence[BaseCallbackHandler]:
        return self.llm.callback_manager.handlers

    @contextmanager
    def report_call(self) -> Iterator[None]:
        """Reports the start of the call, and its end or its error."""
        llm = self.llm.to_payload()
        self._dispatch(LLMChatStartEvent(messages=self.messages, additional_kwargs=self.keywords, model_dict=llm))
        payload = {EventPayload.MESSAGES: self.messages, EventPayload.ADDITIONAL_KWARGS: self.keywords}
        callbacks = self.llm.callback_manager
        callbacks.on_event_start(CBEventType.LLM, payload | {EventPayload.SERIALIZED: llm}, event_id=self._event_id)
        try:
            yield
        except BaseException as error:
            self._dispatch(ExceptionEvent(exception=error))
            callbacks.on_event_end(
                CBEventType.LLM, self._end_payload() | {EventPayload.EXCEPTION: error}, self._event_id
            )
            raise
        callbacks.on_event_end(CBEventType.LLM, self._end_payload(), self._event_id)
        if self.trace is not None:
            self._dispatch(LLMChatEndEvent(messages=self.messages, response=without_usage(trace_response(self.trace))))

    @contextmanager
    def count_inner_runs(self) -> Iterator[None]:
        """Counts the runs of conductors that start in this block as part of this one, and not once more."""
        token = _handlers_of_run.set((*_handlers_of_run.get(), *self._handlers))
        try:
            yield
        finally:
            _handlers_of_run.reset(token)

    def report_event(self, event: Event) -> None:
        """Reports an event of the run."""
        if isinstance(event, Finished):
            self.trace = event.trace
        if not isinstance(event, PlanDelta | ReasoningDelta | AnswerDelta):
            self._dispatch(ConductorEvent(event=event))

    def report_chunk(self, response: ChatResponse) -> None:
        """Reports a chunk of the answer."""
        self._dispatch(LLMChatInProgressEvent(messages=self.messages, response=response))

    def _end_payload(self) -> dict[str, Any]:
        """The payload from which callback handlers count tokens; empty if none were used or the outer run has them."""
        if self.trace is None or not self.trace.usage.total_tokens or self._is_counted_outside:
            return {}
        return {EventPayload.MESSAGES: self.messages, EventPayload.RESPONSE: trace_response(self.trace)}

    def _dispatch(self, event: BaseEvent) -> None:
        dispatcher.event(event.model_copy(update={"span_id": self.span_id}))


# --------------------------------------------------------------------------------- the calls inside


def instrument_pool(discovered: DiscoveredPool) -> DiscoveredPool:
    """Wraps the models of the planner and the workers so that each of their calls is a span."""
    pool = discovered.pool.wrap_models(lambda model, name: InstrumentedModel(model, span="work", tags={"worker": name}))
    return replace(discovered.map_planners(_instrument_planner), pool=pool)


def _instrument_planner(planner: Planner) -> Planner:
    return planner.wrap_models(lambda model: InstrumentedModel(model, span="plan", tags={}))


class InstrumentedModel(WrapperModel):
    """Reports each call of a model as a span, with LLM events inside it unless the model itself reports them."""

    def __init__(self, model: Model, *, span: str, tags: dict[str, Any]) -> None:
        super().__init__(model)
        self._span_name = f"Conductor.{span}"
        self._tags = {**tags, "model": model.name}
        self._reports_events = isinstance(model, LLMModel | TaskModel | NestedConductorModel)

    async def complete(self, request: Request) -> Completion:
        with self._span(request) as span:
            span.result = completion = await self.model.complete(request)
        return completion

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        with self._span(request) as span:
            async with aclosing(self.model.stream(request)) as deltas:
                async for delta in deltas:
                    span.result = delta.completion or span.result
                    yield delta

    @contextmanager
    def _span(self, request: Request) -> Iterator[_Span]:
        span = _Span(f"{self._span_name}-{uuid4()}")
        token = active_span_id.set(span.id)
        bound_args = REQUEST_SIGNATURE.bind(request)
        parent = token.old_value if isinstance(token.old_value, str) else None
        dispatcher.span_enter(id_=span.id, bound_args=bound_args, parent_id=parent, tags=self._tags)
        messages = [] if self._reports_events else [chat_message(message) for message in request.messages]
        try:
            if not self._reports_events:
                model = {"model_name": self.name}
                dispatcher.event(LLMChatStartEvent(messages=messages, additional_kwargs={}, model_dict=model))
            yield span
            if span.result is not None and not self._reports_events:
                dispatcher.event(LLMChatEndEvent(messages=messages, response=completion_response(span.result)))
        except BaseException as error:
            dispatcher.event(SpanDropEvent(span_id=span.id, err_str=str(error)))
            dispatcher.span_drop(id_=span.id, bound_args=bound_args, err=error)
            raise
        else:
            dispatcher.span_exit(id_=span.id, bound_args=bound_args, result=span.result)
        finally:
            active_span_id.reset(token)


@dataclass
class _Span:
    id: str
    result: Completion | None = None


REQUEST_SIGNATURE = inspect.signature(lambda request: request)
"""Signature with which spans record the request of a call."""
