"""Sync and async calls from several threads and event loops share a vendor's real integration."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.ollama import Ollama

from llama_index.llms.conductor import Conductor
from llama_index.llms.conductor.models.async_support import uses_async

from .ollama_server import FakeOllama, ollama
from .scripts import TWO_STEPS, EchoLLM, response_text, user_messages

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""Event loops that are closed leave their connections open, and the garbage collector may find them at any time."""
ANSWER = "The whole answer."
OPEN: list[object] = []
"""Objects with open connections, kept until the end of the test."""
T = TypeVar("T")
Ask = Callable[[Conductor], ChatResponse]


@pytest.fixture
def server() -> Iterator[FakeOllama]:
    with ollama(answer=lambda model: TWO_STEPS if model == "planner" else ANSWER) as served:
        yield served
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            OPEN.clear()  # connections of a closed event loop can not be closed
            gc.collect()


def keep_open(thing: T) -> T:
    OPEN.append(thing)
    return thing


def llm(server: FakeOllama, model: str = "tiny") -> Ollama:
    return keep_open(Ollama(model=model, base_url=server.url, context_window=8000))


def conductor(server: FakeOllama, drafter: Any = None) -> Conductor:
    return keep_open(
        Conductor({"drafter": drafter or llm(server), "writer": llm(server)}, planner=llm(server, "planner"))
    )


def followed_plan(chat: Conductor, response: ChatResponse) -> bool:
    assert chat.trace is not None
    assert chat.trace.answer is not None
    sources = chat.trace.rounds[0].plan.source, chat.trace.answer.source
    return sources == ("planner", "final") and response_text(response).strip() == ANSWER


def call_chat(chat: Conductor) -> ChatResponse:
    return chat.chat(user_messages("hi"))


def call_stream_chat(chat: Conductor) -> ChatResponse:
    return list(chat.stream_chat(user_messages("hi")))[-1]


async def call_achat(chat: Conductor) -> ChatResponse:
    return await chat.achat(user_messages("hi"))


async def call_astream_chat(chat: Conductor) -> ChatResponse:
    return [response async for response in await chat.astream_chat(user_messages("hi"))][-1]


SYNC: tuple[Ask, ...] = (
    call_chat,
    call_stream_chat,
    lambda chat: asyncio.run(call_achat(chat)),
    lambda chat: asyncio.run(call_astream_chat(chat)),
)


async def test_concurrent_calls_of_every_kind_follow_their_plans(server: FakeOllama) -> None:
    chats = [conductor(server) for _ in range(6)]  # a Conductor keeps the trace of its last run only
    followed = Counter[bool]()
    with ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        for _ in range(4):
            for chat, response in zip(chats, (call_chat(chats[0]), await call_achat(chats[1])), strict=False):
                followed[followed_plan(chat, response)] += 1
            calls = [loop.run_in_executor(threads, ask, chat) for ask, chat in zip(SYNC, chats, strict=False)]
            responses = await asyncio.gather(*calls, call_achat(chats[4]), call_astream_chat(chats[5]))
            followed.update(map(followed_plan, chats, responses))
    assert followed == {True: 4 * 8}


def test_event_loops_may_be_closed_between_calls(server: FakeOllama) -> None:
    chat = conductor(server)
    assert [followed_plan(chat, ask(chat)) for _ in range(3) for ask in SYNC] == [True] * 12


@pytest.mark.parametrize("ask", SYNC)
def test_query_engines_with_the_same_llm_answer_on_every_loop(
    server: FakeOllama, indexes: dict[str, VectorStoreIndex], ask: Ask
) -> None:
    chat = conductor(server, indexes["hr"].as_query_engine(llm=llm(server)))
    assert [followed_plan(chat, call(chat)) for call in (ask, *SYNC)] == [True] * 5


def test_engines_whose_sync_methods_start_event_loops_are_detected(indexes: dict[str, VectorStoreIndex]) -> None:
    engine = indexes["hr"].as_query_engine(llm=EchoLLM())
    fusion = QueryFusionRetriever([indexes["hr"].as_retriever()], llm=EchoLLM(), num_queries=1)
    tool = QueryEngineTool.from_defaults(engine, name="hr", description="hr")
    questions = SubQuestionQueryEngine.from_defaults(
        [tool], llm=EchoLLM(), question_gen=LLMQuestionGenerator.from_defaults(EchoLLM())
    )
    assert [uses_async(source) for source in (engine, fusion, questions)] == [False, True, True]
