"""The caller's `recursion_limit` also stops agents and graphs that are workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from conductor_graphs import around
from core.runs import plan
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from rl_conductor import RunError, ScriptedModel

LIMITED: RunnableConfig = {"recursion_limit": 12}
QUESTION: Any = {"messages": "q"}
MOST_CALLS = 40


@tool
def ping(what: str) -> str:
    """Ping something."""
    return f"{what}: pong"


class Pinger(BaseChatModel):
    """Calls the tool again and again, and answers only at its 40th call."""

    calls_made: list[int]

    @property
    def _llm_type(self) -> str:
        return "pinger"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Returns itself: it knows its tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.calls_made.append(len(messages))
        count = len(self.calls_made)
        calls = [ToolCall(name="ping", args={"what": "it"}, id=str(count))] if count < MOST_CALLS else []
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if calls else "Done.", tool_calls=calls))])


def chat_of(pinger: Pinger, limit: int | None = None) -> ChatConductor:
    """Builds a conductor whose only worker is the agent; `limit` is the agent's own."""
    agent = create_agent(pinger, [ping])
    if limit is not None:
        agent = agent.with_config(recursion_limit=limit)
    return ChatConductor(workers={"agent": agent}, planner=ScriptedModel(plan((0, "Ping.", []))))


def in_a_node(chat: ChatConductor, config: RunnableConfig) -> object:
    def call(state: Any) -> Any:
        return {"messages": [chat.invoke(state["messages"])]}

    node: Any = call
    return around(node).invoke(QUESTION, config)


CALLS: dict[str, Callable[[ChatConductor, RunnableConfig], object]] = {
    "invoke": lambda chat, config: chat.invoke("q", config),
    "with_config": lambda chat, config: chat.with_config(config).invoke("q"),
    "batch": lambda chat, config: chat.batch(["q"], config),
    "stream": lambda chat, config: list(chat.stream("q", config)),
    "a runnable": lambda chat, config: RunnableConductor(chat).invoke("q", config),
    "a node": lambda chat, config: around(create_conductor(chat)).invoke(QUESTION, config),
    "an ordinary node": in_a_node,
}


@pytest.mark.parametrize("call", CALLS)
def test_it_stops_an_agent_that_never_finishes(call: str) -> None:
    pinger = Pinger(calls_made=[])
    with pytest.raises(RunError, match="Recursion limit of 12 reached"):
        CALLS[call](chat_of(pinger), LIMITED)
    assert len(pinger.calls_made) == 6


async def test_it_stops_one_in_calls_that_are_awaited() -> None:
    pinger = Pinger(calls_made=[])
    chat = chat_of(pinger)
    with pytest.raises(RunError, match="Recursion limit of 12 reached"):
        await chat.ainvoke("q", LIMITED)
    with pytest.raises(RunError, match="Recursion limit of 12 reached"):
        _ = [chunk async for chunk in chat.astream("q", LIMITED)]
    assert len(pinger.calls_made) == 12


def test_an_agent_keeps_its_own_limit_if_it_is_smaller() -> None:
    with pytest.raises(RunError, match="Recursion limit of 6 reached"):
        chat_of(Pinger(calls_made=[]), limit=6).invoke("q", LIMITED)


@pytest.mark.parametrize("call", CALLS)
def test_without_one_agents_go_on(call: str) -> None:
    pinger = Pinger(calls_made=[])
    CALLS[call](chat_of(pinger), {})
    assert len(pinger.calls_made) == MOST_CALLS
