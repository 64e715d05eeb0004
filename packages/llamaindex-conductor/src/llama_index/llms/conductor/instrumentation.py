"""What LlamaIndex's observers see of a run: a span for each call to a model, events for what was planned and done.

Tokens are told once to each kind of observer. Callback handlers get one LLM event with the usage of the whole run;
handlers of the dispatcher get an LLM event with usage for every call inside of it, and none for the run itself.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatInProgressEvent, LLMChatStartEvent
from llama_index.core.llms import LLM
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id

from rl_conductor import Completion, DiscoveredPool, Event, Model, Request, Trace, WorkerPool
from rl_conductor.models.base import WrapperModel
from rl_conductor.trace.events import AnswerDelta, Finished, PlanDelta
from rl_conductor.types import Delta

from .llm_model import LLMModel
from .lookups import Lookup
from .messages import chat_message
from .nested import NestedModel
from .responses import answer, reply, without_usage

dispatcher = get_dispatcher(__name__)


class ConductorEvent(BaseEvent):
    """Something that happened in a run; pieces of text as they are written are left out."""

    event: Event

    @classmethod
    def class_name(cls) -> str:
        """Its name for observers."""
        return "ConductorEvent"


# ---------------------------------------------------------------------------------- the whole call


@dataclass
class Report:
    """One call to the Conductor, told to its observers from its beginning to its end."""

    llm: LLM
    messages: Sequence[ChatMessage]
    keywords: dict[str, Any]
    span_id: str | None
    """The span that the call was made in; a stream is read after it has ended."""
    trace: Trace | None = None
    """What happened, once it is over, however it ended."""

    def __post_init__(self) -> None:
        self._event_id = str(uuid4())

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell of the beginning now, and of the end whatever comes of it."""
        about = self.llm.to_payload()
        self._dispatch(LLMChatStartEvent(messages=self.messages, additional_kwargs=self.keywords, model_dict=about))
        payload = {EventPayload.MESSAGES: self.messages, EventPayload.ADDITIONAL_KWARGS: self.keywords}
        callbacks = self.llm.callback_manager
        callbacks.on_event_start(CBEventType.LLM, payload | {EventPayload.SERIALIZED: about}, event_id=self._event_id)
        try:
            yield
        except BaseException as error:
            self._dispatch(ExceptionEvent(exception=error))
            callbacks.on_event_end(CBEventType.LLM, self._end() | {EventPayload.EXCEPTION: error}, self._event_id)
            raise
        callbacks.on_event_end(CBEventType.LLM, self._end(), self._event_id)
        if self.trace is not None:
            self._dispatch(LLMChatEndEvent(messages=self.messages, response=without_usage(answer(self.trace))))

    def hear(self, event: Event) -> None:
        """Something that happened in the run."""
        if isinstance(event, Finished):
            self.trace = event.trace
        if not isinstance(event, PlanDelta | AnswerDelta):
            self._dispatch(ConductorEvent(event=event))

    def progress(self, response: ChatResponse) -> None:
        """A piece of the answer."""
        self._dispatch(LLMChatInProgressEvent(messages=self.messages, response=response))

    def _end(self) -> dict[str, Any]:
        """What callback handlers count: nothing, when nothing was used."""
        if self.trace is None or not self.trace.usage.total_tokens:
            return {}
        return {EventPayload.MESSAGES: self.messages, EventPayload.RESPONSE: answer(self.trace)}

    def _dispatch(self, event: BaseEvent) -> None:
        dispatcher.event(event.model_copy(update={"span_id": self.span_id}))


# --------------------------------------------------------------------------------- the calls inside


def observed(found: DiscoveredPool) -> DiscoveredPool:
    """`found`, the calls of whose planner and workers are spans."""
    planner = replace(found.planner, model=Observed(found.planner.model, span="plan", tags={}))
    pool = WorkerPool(
        replace(worker, model=Observed(worker.model, span="work", tags={"worker": worker.name}))
        for worker in found.pool.values()
    )
    return replace(found, planner=planner, pool=pool)


class Observed(WrapperModel):
    """A model whose every call is a span, with LLM events in it unless the model tells of its calls itself."""

    def __init__(self, model: Model, *, span: str, tags: dict[str, Any]) -> None:
        super().__init__(model)
        self._span_name = f"Conductor.{span}"
        self._tags = {**tags, "model": model.name}
        self._tells_itself = isinstance(model, LLMModel | Lookup | NestedModel)

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        with self._span(request) as span:
            span.result = completion = await self.model.complete(request)
        return completion

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made."""
        with self._span(request) as span:
            async with aclosing(self.model.stream(request)) as deltas:
                async for delta in deltas:
                    span.result = delta.completion or span.result
                    yield delta

    @contextmanager
    def _span(self, request: Request) -> Iterator[_Span]:
        span = _Span(f"{self._span_name}-{uuid4()}")
        token = active_span_id.set(span.id)
        bound = ASKED.bind(request)
        parent = token.old_value if isinstance(token.old_value, str) else None
        dispatcher.span_enter(id_=span.id, bound_args=bound, parent_id=parent, tags=self._tags)
        messages = [] if self._tells_itself else [chat_message(message) for message in request.messages]
        try:
            if not self._tells_itself:
                about = {"model_name": self.name}
                dispatcher.event(LLMChatStartEvent(messages=messages, additional_kwargs={}, model_dict=about))
            yield span
            if span.result is not None and not self._tells_itself:
                dispatcher.event(LLMChatEndEvent(messages=messages, response=reply(span.result)))
        except BaseException as error:
            dispatcher.event(SpanDropEvent(span_id=span.id, err_str=str(error)))
            dispatcher.span_drop(id_=span.id, bound_args=bound, err=error)
            raise
        else:
            dispatcher.span_exit(id_=span.id, bound_args=bound, result=span.result)
        finally:
            active_span_id.reset(token)


@dataclass
class _Span:
    id: str
    result: Completion | None = None


ASKED = inspect.signature(lambda request: request)
"""How a span spells what was asked in it."""
