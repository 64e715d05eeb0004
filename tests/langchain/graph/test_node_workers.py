"""Agents and graphs as workers of the node: with their own tools, their own checkpoints, and their own pauses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from conductor_graphs import THREAD, around, told
from core.runs import plan
from langchain_conductor.chat import ChatConductor
from langchain_conductor.graph.node import create_conductor
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import Conductor, Limits, RunError, ScriptedModel

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


@pytest.mark.parametrize(
    ("value", "reason"),
    [("yes", "string indices"), ({"decisions": [{"type": "ok"}]}, "'ok' is not allowed")],
    ids=["no decisions", "an unknown decision"],
)
def test_an_agent_that_fails_on_the_value_of_a_resume_ends_the_run_and_leaves_its_step_to_no_other_worker(
    value: Any, reason: str
) -> None:
    scales = Scales()
    careful = agent(scales, middleware=[HumanInTheLoopMiddleware(interrupt_on={"weigh": True})])
    graph = around(create_conductor(conductor(careful)), saver=InMemorySaver())
    graph.invoke(QUESTION, THREAD)
    with pytest.raises(RunError, match=rf"{reason}.*after it was resumed.*'decisions': \[\{{'type': 'approve'}}\]"):
        graph.invoke(Command(resume=value), THREAD)
    assert graph.get_state(THREAD).next == ("solve",)
    assert scales.uses == 0


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


# ---------------------------------------------------------------------------- what is spent before a pause

TOKENS = UsageMetadata(input_tokens=10, output_tokens=5, total_tokens=15)
SIDE_BY_SIDE = plan((0, "weigh it", []), (0, "weigh that", []), (1, "tell", [0, 1]))


@tool
def ask(what: str) -> str:
    """Ask a person."""
    return f"{interrupt(what)}"


class Inquirer(BaseChatModel):
    """Asks `questions` questions, one after the other, and then answers; each call has 15 tokens."""

    questions: int

    @property
    def _llm_type(self) -> str:
        return "inquirer"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Returns itself: it knows its tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answers = sum(isinstance(message, ToolMessage) for message in messages)
        calls = [ToolCall(name="ask", args={"what": "ok?"}, id=str(answers))] if answers < self.questions else []
        reply = AIMessage("" if calls else "3 kg", tool_calls=calls, usage_metadata=TOKENS)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def asking(saver: Any, *, limits: Limits | None = None, text: str = TWO_STEPS, questions: int = 3) -> Graph:
    agent_graph = create_agent(Inquirer(questions=questions), [ask])
    workers: dict[str, Any] = {"agent": agent_graph, "teller": ScriptedModel(told, name="teller")}
    chat = ChatConductor(workers=workers, planner=ScriptedModel([text]), limits=limits)
    return around(create_conductor(chat), saver=saver)


@contextmanager
def opened(kind: str, path: Path) -> Iterator[Any]:
    if kind == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(path / "db")) as saver:
            yield saver


def usage_of(result: Any) -> Any:
    answer = result["messages"][-1]
    return answer.response_metadata["conductor"]["usage"]["calls"], answer.usage_metadata["total_tokens"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_calls_and_tokens_of_an_agent_before_its_pauses_are_in_the_usage(tmp_path: Path, kind: str) -> None:
    _, tokens_without_pauses = usage_of(asking(InMemorySaver(), questions=0).invoke(QUESTION, THREAD))
    with opened(kind, tmp_path) as saver:
        graph, question = asking(saver), QUESTION
        for _ in range(3):
            (pause,) = graph.invoke(question, THREAD)["__interrupt__"]
            assert pause.value == "ok?"
            question = Command(resume="yes")
        calls, tokens = usage_of(graph.invoke(question, THREAD))
    assert calls == 6, "the planner, four calls of the agent, the teller"
    assert tokens == tokens_without_pauses + 3 * TOKENS["total_tokens"]


async def test_they_are_in_the_usage_of_a_graph_that_is_awaited(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        graph = asking(saver)
        result = await graph.ainvoke(QUESTION, THREAD)
        for _ in range(3):
            result = await graph.ainvoke(Command(resume="yes"), THREAD)
        assert usage_of(result)[0] == 6


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_limits_count_what_an_agent_spent_before_its_pauses(tmp_path: Path, kind: str) -> None:
    with opened(kind, tmp_path) as saver:
        graph = asking(saver, limits=Limits(calls=3))
        graph.invoke(QUESTION, THREAD)
        graph.invoke(Command(resume="yes"), THREAD)
        with pytest.raises(RunError, match=r"limits\.calls=3 is used up") as caught:
            graph.invoke(Command(resume="yes"), THREAD)
    assert caught.value.trace.usage.calls == 3


@pytest.mark.parametrize("together", [True, False])
async def test_steps_side_by_side_keep_what_each_spent_before_its_pauses(together: bool) -> None:
    graph = asking(InMemorySaver(), text=SIDE_BY_SIDE, questions=2)
    result = await graph.ainvoke(QUESTION, THREAD)
    assert len(result["__interrupt__"]) == 2
    while pauses := result.get("__interrupt__"):
        answers = {pause.id: "yes" for pause in (pauses if together else pauses[:1])}
        result = await graph.ainvoke(Command(resume=answers), THREAD)
    assert usage_of(result)[0] == 8, "the planner, three calls for each step, the teller"
