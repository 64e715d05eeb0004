"""Calls of every kind mix in one process over a vendor's real integration, whatever event loop they come from."""

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
from llama_index.llms.conductor.blocking import uses_async

from .ollama_server import Served, ollama
from .scripts import TWO_STEPS, EchoLLM, asked, text_of

ANSWER = "The whole answer."
OPEN: list[object] = []
"""What holds connections, kept until the end of the test."""
T = TypeVar("T")
Ask = Callable[[Conductor], ChatResponse]


@pytest.fixture
def server() -> Iterator[Served]:
    with ollama(answer=lambda model: TWO_STEPS if model == "planner" else ANSWER) as served:
        yield served
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            OPEN.clear()  # nobody can close the connections of an event loop that is closed
            gc.collect()


def kept(thing: T) -> T:
    OPEN.append(thing)
    return thing


def llm(server: Served, model: str = "tiny") -> Ollama:
    return kept(Ollama(model=model, base_url=server.url, context_window=8000))


def conductor(server: Served, drafter: Any = None) -> Conductor:
    return kept(Conductor({"drafter": drafter or llm(server), "writer": llm(server)}, planner=llm(server, "planner")))


def followed_its_plan(chat: Conductor, response: ChatResponse) -> bool:
    assert chat.trace is not None
    assert chat.trace.answer is not None
    sources = chat.trace.rounds[0].plan.source, chat.trace.answer.source
    return sources == ("planner", "final") and text_of(response).strip() == ANSWER


def invoked(chat: Conductor) -> ChatResponse:
    return chat.chat(asked("hi"))


def streamed(chat: Conductor) -> ChatResponse:
    return list(chat.stream_chat(asked("hi")))[-1]


async def awaited(chat: Conductor) -> ChatResponse:
    return await chat.achat(asked("hi"))


async def astreamed(chat: Conductor) -> ChatResponse:
    return [response async for response in await chat.astream_chat(asked("hi"))][-1]


SYNC: tuple[Ask, ...] = (
    invoked,
    streamed,
    lambda chat: asyncio.run(awaited(chat)),
    lambda chat: asyncio.run(astreamed(chat)),
)


async def test_calls_of_every_kind_follow_their_plans(server: Served) -> None:
    chats = [conductor(server) for _ in range(6)]  # each keeps the trace of its last run only
    followed = Counter[bool]()
    with ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        for _ in range(4):
            for chat, response in zip(chats, (invoked(chats[0]), await awaited(chats[1])), strict=False):
                followed[followed_its_plan(chat, response)] += 1
            calls = [loop.run_in_executor(threads, ask, chat) for ask, chat in zip(SYNC, chats, strict=False)]
            responses = await asyncio.gather(*calls, awaited(chats[4]), astreamed(chats[5]))
            followed.update(map(followed_its_plan, chats, responses))
    assert followed == {True: 4 * 8}


def test_event_loops_may_be_closed_between_calls(server: Served) -> None:
    chat = conductor(server)
    assert [followed_its_plan(chat, ask(chat)) for _ in range(3) for ask in SYNC] == [True] * 12


@pytest.mark.parametrize("ask", SYNC)
def test_query_engines_over_the_same_llm_answer_on_every_loop(
    server: Served, indexes: dict[str, VectorStoreIndex], ask: Ask
) -> None:
    chat = conductor(server, indexes["hr"].as_query_engine(llm=llm(server)))
    assert [followed_its_plan(chat, one(chat)) for one in (ask, *SYNC)] == [True] * 5


def test_an_engine_whose_sync_methods_start_event_loops_is_awaited(indexes: dict[str, VectorStoreIndex]) -> None:
    engine = indexes["hr"].as_query_engine(llm=EchoLLM())
    fusion = QueryFusionRetriever([indexes["hr"].as_retriever()], llm=EchoLLM(), num_queries=1)
    tool = QueryEngineTool.from_defaults(engine, name="hr", description="hr")
    questions = SubQuestionQueryEngine.from_defaults(
        [tool], llm=EchoLLM(), question_gen=LLMQuestionGenerator.from_defaults(EchoLLM())
    )
    assert [uses_async(one) for one in (engine, fusion, questions)] == [False, True, True]
