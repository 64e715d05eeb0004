"""Streams contain the text of the answer only, never that of plans, drafts and rejected answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatInProgressEvent
from llama_index.core.tools import FunctionTool
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from llama_index.llms.conductor import Conductor
from llamaindex.scripts import TWO_STEPS, EchoLLM, conductor, plan, planner, tool_call_reply, user_messages
from rl_conductor import Completion, Limits, Message, Request, ScriptedModel
from rl_conductor.trace.events import AnswerDelta


def deltas(llm: Conductor) -> str:
    return "".join(piece.delta or "" for piece in llm.stream_chat(user_messages("Why?")))


async def adeltas(llm: Conductor) -> str:
    return "".join([piece.delta or "" async for piece in await llm.astream_chat(user_messages("Why?"))])


class PlanningLLM(EchoLLM):
    """A LlamaIndex LLM that streams a plan."""

    text: str = TWO_STEPS

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return super().complete(prompt).model_copy(update={"text": self.text})

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        last = list(super().stream_complete(prompt))[-1]
        return iter([last.model_copy(update={"text": self.text, "delta": self.text})])


async def test_plans_and_drafts_of_llamaindex_llms_are_not_streamed() -> None:
    workers = {"drafter": PlanningLLM(text="A DRAFT"), "writer": EchoLLM()}
    llm = Conductor(workers, planner=PlanningLLM())
    assert deltas(llm) == "An echo."
    assert await adeltas(llm) == "An echo."
    assert llm.trace is not None
    assert [result.text for result in llm.trace.results] == ["A DRAFT", "An echo."]


def test_plans_as_json_lines_are_not_streamed() -> None:
    lines = '{"worker": 0, "subtask": "Draft it.", "access": []}\n{"worker": 1, "subtask": "Go.", "access": "all"}'
    assert deltas(conductor(planner=ScriptedModel(lines))) == "The whole answer."


def test_a_plan_that_is_rejected_is_not_streamed() -> None:
    assert deltas(conductor("The answer.", planner=ScriptedModel('{"steps": "nonsense"}'))) == "The answer."


def test_only_the_answer_of_the_last_round_is_streamed() -> None:
    plans = [plan((0, "Go.", [])), plan((1, "Better.", []))]
    llm = conductor("First.", "Second.", planner=ScriptedModel(plans), limits=Limits(rounds=2))
    assert deltas(llm) == "Second."


async def test_a_refusal_of_a_nested_conductor_is_marked_as_one() -> None:
    refusal = Completion(
        message=Message.assistant("I can't help."), finish_reason="content_filter", is_refusal=True, model="m"
    )
    inner = Conductor([ScriptedModel([refusal], name="a")], planner=planner(plan((0, "Go.", []))))
    outer = Conductor({"inner": inner}, planner=planner(plan((0, "Go.", []))))
    deltas = [event async for event in outer.conductor.events("Why?") if isinstance(event, AnswerDelta)]
    assert deltas == [AnswerDelta(text="I can't help.", is_refusal=True)]


def test_plans_and_drafts_of_a_nested_conductor_are_not_streamed() -> None:
    outer = Conductor({"inner": conductor(), "other": ScriptedModel("x")}, planner=planner(plan((0, "Go.", []))))
    assert deltas(outer) == "The whole answer."


def test_a_query_engine_streams_only_the_answer(indexes: dict[str, VectorStoreIndex]) -> None:
    engine = indexes["hr"].as_query_engine(llm=conductor(), streaming=True, similarity_top_k=1)
    response: Any = engine.query("What does Anna Lindqvist earn?")
    assert "".join(response.response_gen) == "The whole answer."


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
async def test_an_agent_streams_only_the_answer() -> None:
    def answers(request: Request) -> str | Message:
        return "310 grams." if request.messages[-1].role == "tool" else tool_call_reply("weigh", kite="Heron")

    def weigh(kite: str) -> str:
        """Returns the weight of a kite."""
        return f"{kite}: 310"

    llm = conductor(second=answers)
    handler = FunctionAgent(tools=[FunctionTool.from_defaults(weigh)], llm=llm).run("How heavy is the Heron?")
    streamed = "".join([event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)])
    assert str(await handler) == streamed == "310 grams."


class Chunks(BaseEventHandler):
    """Collects the chunks of streams with their spans."""

    chunks: list[tuple[str, str]] = []  # noqa: RUF012  (pydantic copies it)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        if isinstance(event, LLMChatInProgressEvent):
            self.chunks.append((event.span_id or "", event.response.delta or ""))


@pytest.fixture
def chunks() -> Iterator[list[tuple[str, str]]]:
    handler = Chunks()
    root = get_dispatcher()
    before = list(root.event_handlers)
    root.event_handlers = [*before, handler]
    yield handler.chunks
    root.event_handlers = before


def test_observers_tell_the_answer_from_plans_by_its_span(chunks: list[tuple[str, str]]) -> None:
    deltas(Conductor({"drafter": EchoLLM(), "writer": EchoLLM()}, planner=PlanningLLM()))
    assert any("model_id" in delta for _, delta in chunks)
    answer = [delta for span, delta in chunks if span.startswith("Conductor.stream_chat-")]
    assert "".join(answer) == "An echo."
