"""Agents and graphs as workers of the node: with their own tools, their own checkpoints, and their own pauses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from conductor_graphs import THREAD, around, told
from core.runs import plan
from langchain_conductor.chat import ChatConductor
from langchain_conductor.graph.node import create_conductor
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import Conductor, ScriptedModel

QUESTION: Any = {"messages": [HumanMessage("q")]}
CALL = AIMessage("", tool_calls=[ToolCall(name="weigh", args={"what": "it"}, id="1")])
TWO_STEPS = plan((0, "weigh it", []), (1, "tell", [0]))


class Question(TypedDict):
    """The input of a user's graph."""

    question: str


class Weighing(Question):
    """Its state."""

    answer: str


class ToolUser(GenericFakeChatModel):
    """A scripted chat model that takes tools."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Itself: the script says when they are called."""
        return self


class Scales:
    """A tool that counts its uses."""

    def __init__(self) -> None:
        self.uses = 0

    def tool(self) -> BaseTool:
        @tool
        def weigh(what: str) -> str:
            """Weigh something."""
            self.uses += 1
            return f"{what} weighs 3 kg"

        return weigh


def agent(scales: Scales, **options: Any) -> Graph:
    chat = ToolUser(messages=iter([CALL, AIMessage("3 kg")]))
    agent_graph: Graph = create_agent(chat, [scales.tool()], **options)
    return agent_graph


def conductor(first: Graph) -> Conductor:
    """Builds a conductor with the agent in its first step."""
    workers: dict[str, Any] = {"agent": first, "teller": ScriptedModel(told, name="teller")}
    return ChatConductor(workers=workers, planner=ScriptedModel([TWO_STEPS])).conductor


async def test_an_agent_does_a_step_with_its_own_tools_and_its_nodes_stream() -> None:
    scales = Scales()
    graph = around(create_conductor(conductor(agent(scales))), saver=InMemorySaver())
    stream: Any = graph.astream(QUESTION, THREAD, stream_mode="updates", subgraphs=True)
    parts = [(namespace, node) async for namespace, update in stream for node in update]
    assert [node for namespace, node in parts if "step_1_agent" in "".join(namespace)] == ["model", "tools", "model"]
    assert (await graph.aget_state(THREAD)).values["messages"][-1].text == "tell(3 kg)"
    assert scales.uses == 1


def test_an_agent_works_in_a_graph_whose_checkpointer_can_not_be_awaited(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        graph = around(create_conductor(conductor(agent(Scales()))), saver=saver)
        assert graph.invoke(QUESTION, THREAD)["messages"][-1].text == "tell(3 kg)"


async def test_an_agent_that_waits_for_a_person_pauses_the_graph_and_goes_on_where_it_was() -> None:
    scales = Scales()
    careful = agent(scales, middleware=[HumanInTheLoopMiddleware(interrupt_on={"weigh": True})])
    graph = around(create_conductor(conductor(careful)), saver=InMemorySaver())
    (pause,) = (await graph.ainvoke(QUESTION, THREAD))["__interrupt__"]
    assert pause.value["action_requests"][0]["name"] == "weigh"
    assert scales.uses == 0
    result = await graph.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert (result["messages"][-1].text, scales.uses) == ("tell(3 kg)", 1)


def test_a_worker_graph_with_its_own_state_can_interrupt_an_invoked_graph() -> None:
    def ask(state: Any) -> dict[str, str]:
        assert "weigh it" in state["question"]
        return {"answer": f"{interrupt('How heavy?')} kg"}

    builder = StateGraph(Weighing, input_schema=Question)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = around(create_conductor(conductor(builder.compile())), saver=InMemorySaver())
    (pause,) = graph.invoke(QUESTION, THREAD)["__interrupt__"]
    assert pause.value == "How heavy?"
    assert "5 kg" in graph.invoke(Command(resume=5), THREAD)["messages"][-1].text
