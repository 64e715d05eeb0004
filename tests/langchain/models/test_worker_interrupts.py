"""Agents and graphs that interrupt outside of `create_conductor`: the run ends with an error that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from conductor_graphs import THREAD, around
from core.runs import plan
from langchain_conductor import ChatConductor, RunnableConductor
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import RunError, ScriptedModel

ONE, TWO = plan((0, "Ask.", [])), plan((0, "Ask.", []), (1, "Tell.", ["all"]))
ERROR = r"step 1: .*paused with an interrupt, which can't be resumed here; use create_conductor"
CALL = AIMessage("", tool_calls=[ToolCall(name="weigh", args={"what": "it"}, id="1")])


class ToolUser(GenericFakeChatModel):
    """A scripted chat model that takes tools."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Returns itself: the script decides when tools are called."""
        return self


class Question(TypedDict):
    """The input of a graph."""

    question: str


class Answer(Question):
    """Its state."""

    answer: str


@tool
def weigh(what: str) -> str:
    """Weigh something."""
    return f"{what} weighs 3 kg"


def agent(saver: InMemorySaver | None = None) -> Graph:
    """An agent that waits for approval of its tool call."""
    chat = ToolUser(messages=iter([CALL, AIMessage("3 kg")]))
    approval = HumanInTheLoopMiddleware(interrupt_on={"weigh": True})
    graph: Graph = create_agent(chat, [weigh], middleware=[approval], checkpointer=saver)
    return graph


def graph() -> Graph:
    builder = StateGraph(Answer, input_schema=Question)
    builder.add_node("ask", lambda _: {"answer": interrupt("How heavy?")})
    return builder.add_edge(START, "ask").compile()


WORKERS: dict[str, Callable[[], Graph]] = {
    "an agent": agent,
    "an agent with a checkpointer": lambda: agent(InMemorySaver()),
    "a graph": graph,
}


def in_a_node(chat: ChatConductor) -> object:
    """Calls `chat` in an ordinary node of a graph with a checkpointer."""
    builder = StateGraph(MessagesState)
    builder.add_node("call", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph: Graph = builder.add_edge(START, "call").compile(checkpointer=InMemorySaver())
    return graph.invoke({"messages": "q"}, THREAD)


def nested(chat: ChatConductor) -> object:
    """Calls `chat` as a worker of another conductor."""
    workers: dict[str, Any] = {"team": chat, "other": ScriptedModel("An answer.")}
    return ChatConductor(workers=workers, planner=ScriptedModel(ONE)).invoke("q")


CALLS: dict[str, Callable[[ChatConductor], object]] = {
    "invoke": lambda chat: chat.invoke("q"),
    "stream": lambda chat: list(chat.stream("q")),
    "a runnable": lambda chat: RunnableConductor(chat).invoke("q"),
    "an ordinary node": in_a_node,
    "nested": nested,
}


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("text", [ONE, TWO])
def test_the_run_ends_and_no_other_worker_answers(worker: str, call: str, text: str) -> None:
    other = ScriptedModel("An answer.")
    chat = ChatConductor(workers={"asks": WORKERS[worker](), "other": other}, planner=ScriptedModel(text))
    with pytest.raises(RunError, match=ERROR):
        CALLS[call](chat)
    assert not other.requests


LAST = RunnableLambda(lambda state: state["messages"][-1].text)
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda agent: agent,
    "with_config": lambda agent: agent.with_config(tags=["mine"]),
    "bind": lambda agent: agent.bind(context={"user": "ann"}),
    "with_retry": lambda agent: agent.with_retry(stop_after_attempt=2),
    "with_fallbacks": lambda agent: agent.with_fallbacks([agent]),
    "in a chain": lambda agent: agent | LAST,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_agent_with_a_checkpointer_starts_a_thread_for_each_call(wrapper: str) -> None:
    saver = InMemorySaver()
    agent: Graph = create_agent(ToolUser(messages=iter([AIMessage("One."), AIMessage("Two.")])), checkpointer=saver)
    chat = ChatConductor(workers={"agent": WRAPPERS[wrapper](agent)}, planner=ScriptedModel(lambda _: ONE))
    assert [chat.invoke("q").text for _ in range(2)] == ["One.", "Two."]
    threads = {checkpoint.config["configurable"]["thread_id"] for checkpoint in saver.list(None)}
    assert len(threads) == 2


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_agent_gets_the_conversation(wrapper: str) -> None:
    agent = create_agent(ToolUser(messages=iter([AIMessage("One.")])))
    conversation = [HumanMessage("q"), AIMessage("a"), HumanMessage("q2")]
    assert (
        ChatConductor({"agent": WRAPPERS[wrapper](agent)}, planner=ScriptedModel(ONE)).invoke(conversation).text
        == "One."
    )


def test_an_agent_that_starts_a_thread_gets_the_rest_of_the_callers_config() -> None:
    users: list[str] = []

    def node(_: Any, config: RunnableConfig) -> Any:
        users.append(config["configurable"]["user"])
        return {"messages": [AIMessage("One.")]}

    worker: Any = around(cast("Graph", node), saver=InMemorySaver())
    ChatConductor(workers={"agent": worker}, planner=ScriptedModel(ONE)).invoke("q", {"configurable": {"user": "A"}})
    assert users == ["A"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_agent_keeps_the_thread_that_it_was_configured_with(wrapper: str) -> None:
    saver = InMemorySaver()
    agent = create_agent(ToolUser(messages=iter([AIMessage("One.")])), checkpointer=saver).with_config(THREAD)
    chat = ChatConductor(workers={"agent": WRAPPERS[wrapper](agent)}, planner=ScriptedModel(ONE))
    assert chat.invoke("q").text == "One."
    assert {checkpoint.config["configurable"]["thread_id"] for checkpoint in saver.list(None)} == {"1"}
