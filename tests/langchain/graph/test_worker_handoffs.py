"""Agents that hand over to another node of the graph around the plan: it goes on there, or an error says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send

from conductor_graphs import THREAD
from core.runs import plan
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import RunError, ScriptedModel

ONE = plan((0, "Answer.", []))
PLANS = {
    "one step": ONE,
    "the first of two": plan((0, "Ask.", []), (1, "Tell.", ["all"])),
    "in a group beside a chain": plan(
        (0, "Ask.", []), (1, "Look.", []), (1, "Look there.", [1]), (1, "Count.", [0]), (1, "Tell.", [2, 3])
    ),
}
ERROR = r"step 1: clerk: .*hands over to 'billing', which a plan can't do; add create_conductor to the graph"
QUESTION: Any = {"messages": "q"}


class ToolUser(GenericFakeChatModel):
    """A scripted chat model that takes tools."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Returns itself: the script decides when tools are called."""
        return self


@tool
def hand_over(call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
    """Hand over to billing."""
    messages = [ToolMessage("Handed over.", tool_call_id=call_id)]
    return Command(goto="billing", graph=Command.PARENT, update={"messages": messages})


@tool
def send() -> Command[str]:
    """Send the question to billing."""
    return Command(goto=[Send("billing", {"messages": [AIMessage("sent")]})], graph=Command.PARENT)


def chat_of(text: str = ONE, name: str = "hand_over") -> ChatConductor:
    """Builds a conductor over an agent that hands over, and a model that could answer in its place."""
    call = AIMessage("", tool_calls=[ToolCall(name=name, args={}, id="1")])
    agent = create_agent(ToolUser(messages=iter([call])), [hand_over, send])
    workers: dict[str, Any] = {"clerk": agent, "other": ScriptedModel("An answer.")}
    return ChatConductor(workers=workers, planner=ScriptedModel(text), access="positional")


def with_billing(node: Any, saver: InMemorySaver | None = None) -> Graph:
    """Builds a graph of the node and one that agents hand over to."""

    def bill(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"Billed after {state['messages'][-1].text!r}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("solve", node)
    builder.add_node("billing", bill)
    return builder.add_edge(START, "solve").compile(checkpointer=saver)


def texts(result: Any) -> list[str]:
    return [message.text for message in result["messages"]]


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
async def test_the_graph_around_the_node_goes_on_at_the_other_node(text: str) -> None:
    expected = ["q", "Handed over.", "Billed after 'Handed over.'"]
    assert texts(with_billing(create_conductor(chat_of(text))).invoke(QUESTION)) == expected
    assert texts(await with_billing(create_conductor(chat_of(text))).ainvoke(QUESTION)) == expected


def test_it_goes_on_in_a_graph_with_a_checkpointer_that_is_itself_a_node() -> None:
    inner = with_billing(create_conductor(chat_of(PLANS["the first of two"])))
    outer = StateGraph(MessagesState).add_node("team", inner).add_edge(START, "team").compile(InMemorySaver())
    assert texts(outer.invoke(QUESTION, THREAD))[-1] == "Billed after 'Handed over.'"


def test_an_agent_may_send_a_state_of_its_own() -> None:
    graph = with_billing(create_conductor(chat_of(name="send")))
    assert texts(graph.invoke(QUESTION)) == ["q", "Billed after 'sent'"]


def in_a_node(chat: ChatConductor) -> object:
    return with_billing(lambda state: {"messages": [chat.invoke(state["messages"])]}).invoke(QUESTION)


CALLS: dict[str, Callable[[ChatConductor], object]] = {
    "invoke": lambda chat: chat.invoke("q"),
    "stream": lambda chat: list(chat.stream("q")),
    "a runnable": lambda chat: RunnableConductor(chat).invoke("q"),
    "an ordinary node": in_a_node,
    "the node's graph alone": lambda chat: create_conductor(chat).invoke(QUESTION),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["hand_over", "send"])
def test_where_no_graph_can_follow_the_run_ends_and_no_other_worker_answers(call: str, name: str) -> None:
    chat = chat_of(name=name)
    with pytest.raises(RunError, match=ERROR) as caught:
        CALLS[call](chat)
    assert [each.worker for each in caught.value.trace.calls] == [None, "clerk"]
