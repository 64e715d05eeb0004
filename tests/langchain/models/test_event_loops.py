"""Sync, async and streaming calls from any event loop or thread can be mixed in one process.

The workers are `ChatOpenAI`, all of which share one async HTTP client, whose connections work on one loop only.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import Field

from core.models.wire.base import SECRET
from core.runs import plan
from langchain_conductor import ChatConductor, create_conductor
from langchain_conductor.models.invocation import is_async_only
from langchain_vendor import Vendor
from rl_conductor import ScriptedModel

TEXT = "Hello to you."
FROM = Counter[tuple[str, str]]
"""The number of plans and answers by their source."""


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    """A service of this test alone: LangChain keeps a client for each address."""
    with Vendor.running() as service:
        yield service


def chat_model(vendor: Vendor, name: str = "gpt-4o-mini", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0, **options)


def conductor(vendor: Vendor, writer: Any = None) -> ChatConductor:
    workers = {"drafter": chat_model(vendor, "gpt-4o"), "writer": writer or chat_model(vendor)}
    return ChatConductor(workers=workers, planner=chat_model(vendor), max_retries=0, temperature=0)


def source(message: AIMessage) -> tuple[str, str]:
    metadata = message.response_metadata["conductor"]
    return metadata["rounds"][0]["plan"]["source"], message.text


Ask = Callable[[ChatConductor], AIMessage]
AskAsync = Callable[[ChatConductor], Coroutine[Any, Any, AIMessage]]


def invoked(chat: ChatConductor) -> AIMessage:
    return chat.invoke("hi")


def streamed(chat: ChatConductor) -> AIMessage:
    return reduce(add, chat.stream("hi"))


async def awaited(chat: ChatConductor) -> AIMessage:
    return await chat.ainvoke("hi")


async def astreamed(chat: ChatConductor) -> AIMessage:
    return reduce(add, [chunk async for chunk in chat.astream("hi")])


def run(ask: AskAsync) -> Ask:
    """Each call on an event loop of its own, closed afterwards."""
    return lambda chat: asyncio.run(ask(chat))


SYNC = (invoked, streamed, run(awaited), run(astreamed))


async def test_calls_of_every_kind_follow_their_plans(vendor: Vendor) -> None:
    chat, sources = conductor(vendor), FROM()
    for _ in range(3):  # a notebook: sync calls where a loop is running, beside awaited ones
        for message in (invoked(chat), await awaited(chat), streamed(chat), await astreamed(chat)):
            sources[source(message)] += 1
    with ThreadPoolExecutor(4) as threads:  # a server: calls from its loop, from threads, and from their loops
        loop = asyncio.get_running_loop()
        for _ in range(4):
            calls = [loop.run_in_executor(threads, ask, chat) for ask in SYNC]
            for message in await asyncio.gather(*calls, awaited(chat), astreamed(chat), awaited(chat)):
                sources[source(message)] += 1
    assert sources == {("planner", TEXT): 3 * 4 + 4 * 7}


def test_event_loops_may_be_closed_between_calls(vendor: Vendor) -> None:
    sources = FROM(source(ask(conductor(vendor))) for _ in range(3) for ask in SYNC)
    assert sources == {("planner", TEXT): 3 * 4}


def test_a_function_without_async_works_on_every_event_loop(vendor: Vendor) -> None:
    model = chat_model(vendor)

    def ask(task: str) -> str:
        return str(model.invoke(task).text)

    chat = ChatConductor({"asker": ask}, planner=ScriptedModel(lambda _: plan((0, "Ask.", []))), max_retries=0)
    assert {ask_chat(chat).text for _ in range(2) for ask_chat in SYNC} == {TEXT}


async def test_a_users_own_calls_of_the_same_model_go_on_working_beside_sync_ones(vendor: Vendor) -> None:
    chat, model = conductor(vendor), chat_model(vendor)
    for _ in range(4):
        assert (await model.ainvoke("hi")).text == TEXT
        assert source(await asyncio.to_thread(invoked, chat)) == ("planner", TEXT)
        assert source(streamed(chat)) == ("planner", TEXT)


def test_a_node_of_a_graph_follows_its_plans_from_every_loop(vendor: Vendor) -> None:
    node = create_conductor(conductor(vendor))
    graph = StateGraph(MessagesState).add_node("solve", node).add_edge(START, "solve").compile()

    def messages(state: Any) -> tuple[str, str]:
        return source(state["messages"][-1])

    async def both() -> list[tuple[str, str]]:
        question: Any = {"messages": "hi"}
        first_result = await asyncio.to_thread(graph.invoke, question)
        return [
            messages(state) for state in (await graph.ainvoke(question), first_result, await graph.ainvoke(question))
        ]

    question: Any = {"messages": "hi"}
    sources = FROM([*asyncio.run(both()), messages(graph.invoke(question)), *asyncio.run(both())])
    assert sources == {("planner", TEXT): 7}


def chain(model: ChatOpenAI) -> Runnable[Any, Any]:
    return RunnableLambda(lambda messages: messages) | model


KINDS: dict[str, Callable[[ChatOpenAI], Runnable[Any, Any]]] = {
    "an agent": create_agent,
    "a chain": chain,
    "a bound model": lambda model: model.bind(seed=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_in_other_runnables_answer_on_every_loop(vendor: Vendor, kind: str) -> None:
    chat = conductor(vendor, KINDS[kind](chat_model(vendor)))
    sources = FROM(source(ask(chat)) for _ in range(2) for ask in SYNC)
    assert sources == {("planner", TEXT): 2 * 4}


# ----------------------------------------------------------------------------- which methods are called


class Both(BaseChatModel):
    """Remembers by which of its methods it was called."""

    called: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "both"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.called.append("sync")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(TEXT))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.called.append("async")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(TEXT))])


class OnlyAsync(Both):
    """A user's own model that has no sync half."""

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError


@pytest.mark.parametrize("ask", [invoked, streamed])
def test_a_sync_call_calls_the_sync_methods_of_workers(vendor: Vendor, ask: Ask) -> None:
    writer = Both()
    assert source(ask(conductor(vendor, writer))) == ("planner", TEXT)
    assert writer.called == ["sync"]


@pytest.mark.parametrize("ask", SYNC)
def test_a_model_without_sync_methods_is_awaited(vendor: Vendor, ask: Ask) -> None:
    writer = OnlyAsync()
    assert source(ask(conductor(vendor, writer))) == ("planner", TEXT)
    assert writer.called == ["async"]


async def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
    await asyncio.sleep(0)
    return {"messages": [AIMessage(TEXT)]}


async def now() -> str:
    """The time."""
    return "noon"


def nodes() -> Runnable[Any, Any]:
    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


def tool() -> StructuredTool:
    return StructuredTool.from_function(coroutine=now, name="now", description="The time.")


async def give_reply(_: Any) -> str:
    await asyncio.sleep(0)
    return TEXT


@pytest.mark.parametrize("make", [nodes, lambda: RunnableLambda(give_reply), lambda: RunnableLambda(str) | give_reply])
def test_a_runnable_with_async_parts_only_is_awaited_in_sync_calls(
    vendor: Vendor, make: Callable[[], Runnable[Any, Any]]
) -> None:
    assert is_async_only(make())
    assert source(invoked(conductor(vendor, make()))) == ("planner", TEXT)


def test_an_agent_with_an_async_tool_has_to_be_awaited_and_one_with_sync_tools_does_not(vendor: Vendor) -> None:
    def today() -> str:
        """The day."""
        return "Monday"

    assert is_async_only(create_agent(chat_model(vendor), [tool()]))
    assert not is_async_only(create_agent(chat_model(vendor), [today]))
    assert not is_async_only(chain(chat_model(vendor)))
    assert source(invoked(conductor(vendor, create_agent(chat_model(vendor), [tool()])))) == ("planner", TEXT)


MIXED_CALLS = Path(__file__).with_name("mixed_calls.py")


@pytest.mark.slow
def test_a_program_that_mixes_200_calls_of_every_kind_follows_every_plan(vendor: Vendor) -> None:
    environment = os.environ | {"OPENAI_BASE_URL": f"{vendor.url}/v1", "OPENAI_API_KEY": SECRET}
    command = [sys.executable, str(MIXED_CALLS)]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.stdout.splitlines() == [f"planner {TEXT} 200"], ended.stderr
    assert len(vendor.requests) == 200 * 3  # a plan and two workers each, so nothing was retried


LEFT_BEHIND = """
import asyncio, sys
from langchain_openai import ChatOpenAI
from langchain_conductor import ChatConductor

model = ChatOpenAI(model="gpt-4o-mini", base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
chat = ChatConductor(workers={"drafter": model, "writer": model}, planner=model, max_retries=0)
asyncio.run(model.ainvoke("hi"))  # by its user, on a loop that we know nothing of
for _ in range(3):
    reply = asyncio.run(chat.ainvoke("hi"))
    print(reply.response_metadata["conductor"]["rounds"][0]["plan"]["source"], reply.text)
"""


def test_a_client_that_its_user_left_behind_on_a_closed_loop_costs_a_logged_retry_even_without_retries(
    vendor: Vendor,
) -> None:
    command = [sys.executable, "-c", LEFT_BEHIND, f"{vendor.url}/v1", SECRET]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.stdout.splitlines() == [f"planner {TEXT}"] * 3, ended.stderr
    failures = [line for line in ended.stderr.splitlines() if line.startswith("a call to openai:gpt-4o-mini failed (")]
    assert len(failures) == 1
    assert "Event loop is closed" in failures[0]
    assert SECRET not in ended.stderr
