"""Instrumentation and callbacks: spans for the plan and every worker call; each token is reported once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Document, Settings, SummaryIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatInProgressEvent, LLMChatStartEvent
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.span import BaseSpan

from llama_index.llms.conductor import Conductor, ConductorEvent
from llamaindex.scripts import EchoLLM, conductor, plan, planner, user_messages, wait_until
from rl_conductor import ModelError, Policy, RunError, ScriptedModel
from rl_conductor.models import Capabilities


class Events(BaseEventHandler):
    """Records all events."""

    seen: list[BaseEvent] = []  # noqa: RUF012  (pydantic copies it)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        self.seen.append(event)

    def of(self, kind: type[BaseEvent]) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]


class Spans(BaseSpanHandler[BaseSpan]):
    """Records all spans."""

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any | None = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **_: Any,
    ) -> BaseSpan:
        return BaseSpan(id_=id_, parent_id=parent_span_id, tags=tags or {})

    def prepare_to_exit_span(self, id_: str, *_: Any, **__: Any) -> BaseSpan:
        self.completed_spans.append(self.open_spans[id_])
        return self.open_spans[id_]

    def prepare_to_drop_span(self, id_: str, *_: Any, **__: Any) -> BaseSpan:
        self.dropped_spans.append(self.open_spans[id_])
        return self.open_spans[id_]

    def with_prefix(self, start: str) -> list[BaseSpan]:
        return [span for span in self.completed_spans if span.id_.startswith(start)]


@pytest.fixture
def events() -> Iterator[Events]:
    handler = Events()
    root = get_dispatcher()
    before = list(root.event_handlers)
    root.event_handlers = [*before, handler]
    yield handler
    root.event_handlers = before


@pytest.fixture
def spans() -> Iterator[Spans]:
    handler = Spans()
    root = get_dispatcher()
    before = list(root.span_handlers)
    root.span_handlers = [*before, handler]
    yield handler
    root.span_handlers = before


def ask(llm: Conductor, way: str) -> None:
    async def streamed() -> None:
        async for _ in await llm.astream_chat(user_messages("Why?")):
            pass

    match way:
        case "chat":
            llm.chat(user_messages("Why?"))
        case "complete":
            llm.complete("Why?")
        case "stream_chat":
            list(llm.stream_chat(user_messages("Why?")))
        case "achat":
            asyncio.run(llm.achat(user_messages("Why?")))
        case "astream_chat":
            asyncio.run(streamed())


WAYS = pytest.mark.parametrize("way", ["chat", "complete", "stream_chat", "achat", "astream_chat"])
ENTRANCES = {"chat": "achat", "complete": "achat"}


@WAYS
def test_the_plan_and_every_worker_call_are_spans_inside_the_call(spans: Spans, way: str) -> None:
    ask(conductor(), way)
    (outer,) = spans.with_prefix(f"Conductor.{ENTRANCES.get(way, way)}-")
    (planning,) = spans.with_prefix("Conductor.plan-")
    working = spans.with_prefix("Conductor.work-")
    assert [span.tags["worker"] for span in working] == ["drafter", "writer"]
    assert {planning.parent_id, *(span.parent_id for span in working)} == {outer.id_}
    assert not spans.open_spans
    assert not spans.dropped_spans


def test_the_span_of_an_llm_is_inside_that_of_its_worker(spans: Spans) -> None:
    Conductor({"a": EchoLLM()}, planner=planner(plan((0, "Go.", [])))).complete("Why?")
    (working,) = spans.with_prefix("Conductor.work-")
    inner = {span.id_: span for span in spans.completed_spans}
    (echo,) = spans.with_prefix("EchoLLM.chat-")
    assert echo.parent_id == working.id_
    assert inner[working.id_].tags == {"worker": "a", "model": "llamaindex:echo"}


def test_the_spans_of_an_engine_are_inside_that_of_its_worker(
    spans: Spans, indexes: dict[str, VectorStoreIndex]
) -> None:
    engine = indexes["hr"].as_query_engine(llm=EchoLLM())
    Conductor({"hr": engine}, planner=planner(plan((0, "Go.", [])))).complete("Why?")
    (working,) = spans.with_prefix("Conductor.work-")
    (query,) = spans.with_prefix("RetrieverQueryEngine.query-")
    assert query.parent_id == working.id_


async def test_concurrent_calls_have_separate_spans(spans: Spans) -> None:
    llm = conductor(ScriptedModel("A draft.", delay=0.05))
    await asyncio.gather(llm.achat(user_messages("One?")), llm.achat(user_messages("Two?")))
    outer = {span.id_ for span in spans.with_prefix("Conductor.achat-")}
    assert len(outer) == 2
    assert {span.parent_id for span in spans.with_prefix("Conductor.plan-")} == outer


def test_a_failed_call_drops_its_span(spans: Spans) -> None:
    broken = ScriptedModel([ModelError("it is down", model="x")], name="broken")
    conductor(broken).complete("Why?")
    (dropped,) = spans.dropped_spans
    assert dropped.tags["worker"] == "drafter"


async def test_a_cancelled_call_drops_its_spans(spans: Spans) -> None:
    slow = ScriptedModel("Never.", delay=60.0)
    task = asyncio.create_task(conductor(slow).achat(user_messages("Why?")))
    await wait_until(lambda: slow.in_flight == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not spans.open_spans
    assert [span.id_.partition("-")[0] for span in spans.dropped_spans] == ["Conductor.work", "Conductor.achat"]


@WAYS
def test_the_dispatcher_gets_each_token_once(events: Events, way: str) -> None:
    llm = Conductor({"a": EchoLLM(), "b": ScriptedModel("Done.")}, planner=planner())
    ask(llm, way)
    usages = [
        event.response.raw["usage"] for event in events.of(LLMChatEndEvent) if "usage" in (event.response.raw or {})
    ]
    read = sum(usage.get("input_tokens", usage.get("prompt_tokens", 0)) for usage in usages)
    assert llm.trace is not None
    # The echo is a CustomLLM, which reports a chat and the completion inside it.
    assert read == llm.trace.usage.input_tokens


@WAYS
def test_the_usage_of_a_nested_conductor_is_reported_once(events: Events, way: str) -> None:
    alone = planner(plan((0, "Go.", [])))
    llm = Conductor({"inner": Conductor({"a": ScriptedModel("Hi.")}, planner=alone)}, planner=alone)
    ask(llm, way)
    ended = events.of(LLMChatEndEvent)
    usages = [event.response.raw["usage"] for event in ended if "usage" in (event.response.raw or {})]
    assert llm.trace is not None
    assert (len(usages), sum(usage["calls"] for usage in usages)) == (3, llm.trace.usage.calls)
    assert sum(usage["input_tokens"] for usage in usages) == llm.trace.usage.input_tokens


@WAYS
def test_callback_handlers_count_each_token_once(way: str) -> None:
    counter = TokenCountingHandler()
    llm = conductor(callback_manager=CallbackManager([counter]))
    ask(llm, way)
    assert llm.trace is not None
    assert counter.prompt_llm_token_count == llm.trace.usage.input_tokens
    assert counter.completion_llm_token_count == llm.trace.usage.output_tokens
    assert len(counter.llm_token_counts) == 1


@WAYS
def test_callback_handlers_count_a_conductor_in_an_engine_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TokenCountingHandler()
    monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([counter]))
    index = SummaryIndex.from_documents([Document(text="Kites need wind.")])
    inner = conductor()
    llm = Conductor({"engine": index.as_query_engine(llm=inner)}, planner=planner(plan((0, "Go.", []))))
    ask(llm, way)
    assert llm.trace is not None
    assert inner.trace is not None
    assert counter.total_llm_token_count == llm.trace.usage.total_tokens > inner.trace.usage.total_tokens


def test_a_counter_of_an_inner_conductor_alone_counts_it() -> None:
    counter = TokenCountingHandler()
    inner = conductor(callback_manager=CallbackManager([counter]))

    def ask_inner(task: str) -> str:
        return str(inner.complete(task))

    Conductor({"inner": ask_inner}, planner=planner(plan((0, "Go.", [])))).complete("Why?")
    assert inner.trace is not None
    assert counter.total_llm_token_count == inner.trace.usage.total_tokens > 0


def test_the_usage_of_a_failed_run_is_counted() -> None:
    counter = TokenCountingHandler()
    broken = ScriptedModel(lambda _: ModelError("it is down", model="x"), name="broken")
    llm = Conductor({"a": broken}, planner=planner(plan((0, "Go.", []))), callback_manager=CallbackManager([counter]))
    with pytest.raises(RunError):
        llm.complete("Why?")
    assert llm.trace is not None
    assert counter.total_llm_token_count == llm.trace.usage.total_tokens > 0


def test_the_usage_of_a_closed_stream_is_counted() -> None:
    counter = TokenCountingHandler()
    llm = conductor(callback_manager=CallbackManager([counter]))
    stream = llm.stream_chat(user_messages("Why?"))
    next(stream)
    stream.close()
    assert llm.trace is not None
    assert counter.total_llm_token_count == llm.trace.usage.total_tokens > 0


def test_a_run_that_never_started_counts_nothing() -> None:
    counter = TokenCountingHandler()
    plain = ScriptedModel("Hi.", capabilities=Capabilities())
    llm = Conductor({"a": plain}, policy=Policy(single="a"), callback_manager=CallbackManager([counter]))
    with pytest.raises(Exception, match="json_schema"):
        llm.complete("Why?", response_format={"type": "object"})
    assert counter.total_llm_token_count == 0


def test_the_events_of_a_run_are_dispatched(events: Events) -> None:
    conductor().complete("Why?")
    kinds = [event.event.type for event in events.of(ConductorEvent)]
    assert kinds[0] == "plan_started"
    assert kinds[-1] == "finished"
    assert {"workflow_planned", "step_started", "step_finished"} < set(kinds)
    assert all(event.span_id.startswith("Conductor.achat-") for event in events.of(ConductorEvent))


def test_the_chunks_of_a_streamed_answer_are_events(events: Events) -> None:
    list(conductor().stream_chat(user_messages("Why?")))
    assert [event.response.delta for event in events.of(LLMChatInProgressEvent)] == ["The ", "whole ", "answer."]


def test_every_call_has_a_start_and_an_end_event(events: Events) -> None:
    conductor().complete("Why?")
    assert len(events.of(LLMChatStartEvent)) == len(events.of(LLMChatEndEvent)) == 4
    assert events.of(LLMChatEndEvent)[-1].response.raw["conductor"]["rounds"]
