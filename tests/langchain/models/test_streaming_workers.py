"""Settings of a call reach LangChain's own chat models unchanged in all else, so that they go on streaming."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field, PrivateAttr

from core.models.wire.anthropic import AnthropicWire
from core.models.wire.base import SECRET, Said, Seen
from core.runs import plan
from langchain_conductor import ChatConductor, ChatModel
from langchain_vendor import AnthropicVendor, Vendor
from rl_conductor import Limits, Request, Sampling, ScriptedModel
from rl_conductor.types import Delta, JsonFormat

PIECES = ["Hello", " to", " you", "."]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"top_p": 0.5},
    {"max_tokens": 50},
    {"seed": 7},
    {"stop": ["END"]},
    {"timeout": 60},
    {"limits": Limits(tokens=100_000)},
    {"limits": Limits(usd=5)},
]


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


def chat_model(vendor: Vendor, name: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0, **options)


def conductor(vendor: Vendor, *, writer: Any = None, **options: Any) -> ChatConductor:
    workers = {"drafter": chat_model(vendor, "gpt-4o"), "writer": writer or chat_model(vendor, "gpt-4o-mini")}
    return ChatConductor(workers=workers, planner=chat_model(vendor, "gpt-4o-mini"), **options)


def answered_by_the_last_step(message: AIMessage) -> bool:
    metadata = message.response_metadata["conductor"]
    return (metadata["rounds"][0]["plan"]["source"], metadata["answer"]["source"]) == ("planner", "final")


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_the_last_worker_streams_the_answer_with_every_setting(vendor: Vendor, settings: dict[str, Any]) -> None:
    chunks = list(conductor(vendor, **settings).stream("hi"))
    assert [chunk.text for chunk in chunks if chunk.text] == PIECES
    message = reduce(add, chunks)
    assert answered_by_the_last_step(message)


class Thinking(AnthropicVendor):
    """Thinks as the scenario `reasoning` of its protocol does."""

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its frames."""
        return AnthropicWire.events(self, seen, said)


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("bound", [False, True], ids=["alone", "in an agent"])
def test_the_reasoning_of_the_last_worker_is_streamed_before_its_text(version: Any, *, bound: bool) -> None:
    with Thinking.running() as vendor:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        claude = ChatAnthropic(model="reasoning", base_url=vendor.url, api_key=SECRET, thinking=thinking)
        planner = ScriptedModel(plan((0, "Answer.", [])))
        chat: Any = ChatConductor({"a": claude}, planner=planner, output_version=version)
        if bound:
            agent: Any = create_agent(chat)
            chunks = [chunk for chunk, _ in agent.stream({"messages": "6 * 7?"}, stream_mode="messages")]
        else:
            chunks = list(chat.stream("6 * 7?"))
    kinds = [block["type"] for chunk in chunks for block in chunk.content_blocks]
    assert kinds == ["reasoning", "text", "text"]
    blocks: list[Any] = reduce(add, chunks).content_blocks
    assert [block.get("reasoning") or block["text"] for block in blocks] == ["six times seven", "42"]


def test_streamed_plans_and_answers_ask_for_their_tokens_at_every_address(vendor: Vendor) -> None:
    message = reduce(add, conductor(vendor).stream("hi"))
    streamed = [wire.body for wire in vendor.requests if wire.body.get("stream")]
    assert len(streamed) == 2
    assert all(body["stream_options"] == {"include_usage": True} for body in streamed)
    rounds = message.response_metadata["conductor"]["rounds"]
    assert rounds[0]["plan"]["usage"]["output_tokens"] > 0


def test_a_chat_model_that_reports_no_tokens_by_choice_stays_as_it_is(vendor: Vendor) -> None:
    writer = chat_model(vendor, "gpt-4o-mini", stream_usage=False)
    list(conductor(vendor, writer=writer).stream("hi"))
    assert vendor.requests[-1].body.get("stream_options") != {"include_usage": True}


def test_a_warning_says_how_a_streamed_agent_reports_its_tokens(caplog: pytest.LogCaptureFixture) -> None:
    helper: Any = create_agent(GenericFakeChatModel(messages=iter(["Hello to you."] * 2)), name="helper")
    agent: Any = create_agent(ChatConductor({"helper": helper}, planner=ScriptedModel(plan((0, "Go.", [])))))
    for _ in range(2):
        list(agent.stream({"messages": "hi"}, stream_mode="messages"))
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "langchain_conductor"]
    assert "in langchain:helper streams replies without token counts" in warning
    assert "stream_usage=True" in warning


def test_an_agent_streams_the_answer_of_a_conductor_with_settings(vendor: Vendor) -> None:
    agent: Any = create_agent(conductor(vendor, temperature=0))
    chunks = [chunk for chunk, _ in agent.stream({"messages": "hi"}, stream_mode="messages")]
    assert [chunk.text for chunk in chunks if chunk.text] == PIECES


class Whole(BaseChatModel):
    """A chat model that has no `_stream`."""

    temperature: float | None = None

    @property
    def _llm_type(self) -> str:
        return "whole"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("All at once."))])


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}], ids=["unset", "set"])
@pytest.mark.parametrize("kind", ["no _stream", "disable_streaming", "streaming=False", "bound", "configured"])
def test_a_worker_that_can_not_stream_answers_in_one_piece(vendor: Vendor, kind: str, settings: dict[str, Any]) -> None:
    workers: dict[str, Any] = {
        "no _stream": Whole(),
        "disable_streaming": chat_model(vendor, "gpt-4o-mini", disable_streaming=True),
        "streaming=False": chat_model(vendor, "gpt-4o-mini", streaming=False),
        "bound": chat_model(vendor, "gpt-4o-mini", disable_streaming=True).bind(seed=1),
        "configured": Whole().with_config(tags=["x"]),
    }
    chunks = list(conductor(vendor, writer=workers[kind], **settings).stream("hi"))
    text = "All at once." if kind in ("no _stream", "configured") else "".join(PIECES)
    assert [chunk.text for chunk in chunks if chunk.text] == [text]
    message = reduce(add, chunks)
    assert answered_by_the_last_step(message)


async def test_tool_calls_of_a_worker_that_can_not_stream_arrive_in_a_stream(vendor: Vendor) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    writer = chat_model(vendor, "gpt-4o-mini", disable_streaming="tool_calling")
    chat = conductor(vendor, writer=writer, temperature=0).bind_tools([now], tool_choice="any")
    message = reduce(add, [chunk async for chunk in chat.astream("hi")])
    assert isinstance(message, AIMessageChunk)
    assert [call["name"] for call in message.tool_calls] == ["now"]
    assert message.response_metadata["conductor"]["answer"]["step"] == 1


def test_a_planner_that_can_not_stream_plans(vendor: Vendor) -> None:
    planner = GenericFakeChatModel(messages=iter([AIMessage(plan((0, "Answer.", [])))]), disable_streaming=True)
    chat = ChatConductor(workers={"a": ScriptedModel("Yes."), "b": ScriptedModel("No.")}, planner=planner)
    message = reduce(add, chat.stream("hi", temperature=0))
    assert (message.text, answered_by_the_last_step(message)) == ("Yes.", True)


# ---------------------------------------------------------------------------------------- settings


class Counting(Whole):
    """A user's own chat model: it has state, and a constructor of its own."""

    tenant: str = ""
    seen: list[float | None] = Field(default_factory=list)
    _secret: str = PrivateAttr(default="")

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant, self._secret = tenant, f"of {tenant}"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append(self.temperature)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self._secret))])


HELLO = Request.user("Hello")
ALL_SET = HELLO.model_copy(update={"sampling": Sampling(temperature=0.1, max_tokens=9, seed=3, stop=("END",))})


async def test_settings_keep_the_state_of_a_users_own_chat_model() -> None:
    chat = Counting("ours")
    assert (await ChatModel(chat).complete(ALL_SET)).text == "of ours"
    assert (chat.seen, chat.temperature) == ([0.1], None)


async def test_settings_of_a_call_do_not_change_the_chat_model(vendor: Vendor) -> None:
    chat = chat_model(vendor, "gpt-4o-mini", temperature=0.9)
    before, fields = chat.model_dump(), set(chat.model_fields_set)
    await ChatModel(chat).complete(ALL_SET)
    assert vendor.last.body.items() >= {"temperature": 0.1, "max_completion_tokens": 9, "seed": 3}.items()
    assert (chat.model_dump(), chat.model_fields_set) == (before, fields)


async def test_a_stop_sequence_also_reaches_a_request_for_json(vendor: Vendor) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = ALL_SET.model_copy(update={"response_format": JsonFormat(name="place", json_schema=schema)})
    await ChatModel(chat_model(vendor, "gpt-4o-mini")).complete(request)
    assert vendor.last.body.items() >= {"temperature": 0.1, "seed": 3, "stop": ["END"]}.items()


async def test_a_stream_of_a_model_that_can_not_stream_ends_in_its_completion(vendor: Vendor) -> None:
    model = ChatModel(chat_model(vendor, "gpt-4o-mini", disable_streaming=True))
    deltas = [delta async for delta in model.stream(ALL_SET)]
    assert [delta.text for delta in deltas] == ["Hello to you.", ""]
    assert isinstance(deltas[-1], Delta)
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.usage.output_tokens == 30
