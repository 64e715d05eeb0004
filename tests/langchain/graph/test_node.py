"""The node in users' graphs: input, output, and LangGraph's features for nodes."""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, Send

from conductor_graphs import ANSWER, DIAMOND, THREAD, around, asked, conductor, told
from core.runs import ACCEPT, Gated, down, forever, plan, pool_of
from langchain_conductor import ChatConductor
from langchain_conductor.graph.node import PLAN, create_conductor
from langchain_conductor.graph.step_graph import Graph
from langchain_conductor.models import ChatModel
from rl_conductor import Conductor, ConfigError, Flow, Limits, Message, Policy, Request, RunError, ScriptedModel
from rl_conductor.models.base import WrapperModel
from rl_conductor.trace.summary import Summary
from rl_conductor.types import Completion, Delta, ToolCall

QUESTION: Any = {"messages": [HumanMessage("q")]}


class Words(TypedDict, total=False):
    """A state of the user's own."""

    question: str
    answer: str


class Answers(TypedDict):
    """Collects the answers of many nodes."""

    answer: Annotated[list[Any], lambda values, new: [*values, new]]


class Research(TypedDict):
    """Collects texts."""

    question: str
    findings: Annotated[list[str], operator.add]


def texts(state: dict[str, Any]) -> list[str]:
    return [message.text for message in state["messages"]]


# ----------------------------------------------------------------------------------- in and out


def test_only_the_answer_joins_the_conversation() -> None:
    result = around(create_conductor(conductor())).invoke(QUESTION)
    assert texts(result) == ["q", ANSWER]
    assert set(result) == {"messages"}


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="output_mode is 'all'; write 'last_message' or 'full_history'"):
        create_conductor(conductor(), output_mode="all")  # type: ignore[arg-type]


def test_tools_are_refused_where_the_answer_is_text() -> None:
    def weigh(what: str) -> str:
        """Weigh something."""
        return what

    with pytest.raises(ConfigError, match="output_key 'answer' gets only text, so calls of tools would be lost"):
        create_conductor(conductor(), input_key="question", output_key="answer", tools=[weigh])


async def test_it_works_in_graphs_that_are_awaited() -> None:
    assert texts(await around(create_conductor(conductor())).ainvoke(QUESTION)) == ["q", ANSWER]


def test_the_answer_counts_the_tokens_of_the_plan_and_of_all_workers() -> None:
    (_, answer) = around(create_conductor(conductor())).invoke(QUESTION)["messages"]
    assert answer.usage_metadata["total_tokens"] == conductor().run_sync("q").usage.total_tokens


def test_full_history_adds_drafts_under_their_workers_names() -> None:
    result = around(create_conductor(conductor(), output_mode="full_history")).invoke(QUESTION)
    assert texts(result) == ["q", "look()", "count()", "join(look(), count())", ANSWER]
    assert [message.name for message in result["messages"][1:4]] == ["a", "b", "a"]


def test_question_and_answer_may_stand_under_keys_of_the_users_own() -> None:
    node = create_conductor(conductor(), input_key="question", output_key="answer")
    assert around(node, schema=Words).invoke({"question": "q"}) == {"question": "q", "answer": ANSWER}


def test_answers_are_collected_in_a_list() -> None:
    def fan_out(_: Research) -> list[Send]:
        return [Send("solve", {"question": word}) for word in ("x", "y")]

    solver = conductor(plan((0, "one", [])), plan((0, "one", [])))
    builder = StateGraph(Research)
    builder.add_node(
        "solve", create_conductor(solver, input_key="question", output_key="findings", output_as_list=True)
    )
    builder.add_conditional_edges(START, fan_out, ["solve"])
    graph: Graph = builder.compile()
    result = graph.invoke({"question": "both", "findings": ["none yet"]})
    assert result["findings"] == ["none yet", "one()", "one()"]
    assert {type(finding) for finding in result["findings"]} == {str}


def test_a_conversation_may_have_another_name() -> None:
    class Chat(TypedDict):
        chat: Annotated[list[AnyMessage], add_messages]

    node = create_conductor(conductor(), input_key="chat", output_key="chat")
    result = around(node, schema=Chat).invoke({"chat": "q"})
    assert [(message.type, message.text) for message in result["chat"]] == [("human", "q"), ("ai", ANSWER)]


def test_a_conversation_without_a_reducer_for_messages_is_not_doubled() -> None:
    class Plain(TypedDict):
        messages: Annotated[list[Any], operator.add]

    result = around(create_conductor(conductor()), schema=Plain).invoke(QUESTION)
    assert texts(result) == ["q", ANSWER]


def test_the_updates_of_the_node_have_only_what_is_new() -> None:
    (update,) = around(create_conductor(conductor())).stream(QUESTION, stream_mode="updates")
    assert texts(update["solve"]) == [ANSWER]


@pytest.mark.parametrize("key", ["messages", "chat"])
def test_alone_with_a_checkpointer_it_continues_the_conversation(key: str) -> None:
    solver = conductor(*[plan((0, "tell", []))] * 2)
    graph = create_conductor(solver, input_key=key, output_key=key)
    graph.checkpointer = InMemorySaver()
    graph.invoke({key: [HumanMessage("I am Ann.")]}, THREAD)
    result = graph.invoke({key: [HumanMessage("Who am I?")]}, THREAD)
    assert [message.text for message in result[key]] == ["I am Ann.", "tell()", "Who am I?", "tell()"]
    assert graph.get_state(THREAD).values[key] == result[key]
    worker = solver.pool["a"].model
    assert isinstance(worker, ScriptedModel)
    assert "I am Ann." in str(worker.requests[-1].messages)


def test_a_graph_whose_state_has_the_key_gets_the_plan() -> None:
    class WithPlan(MessagesState):
        conductor_plan: dict[str, Any]

    result = around(create_conductor(conductor()), schema=WithPlan).invoke(QUESTION)
    assert [step["worker"] for step in result[PLAN]["workflow"]["steps"]] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("key", ["messages", "question"])
def test_a_missing_question_names_the_key_to_write(key: str) -> None:
    node = create_conductor(conductor(), input_key=key, output_key="answer")
    with pytest.raises(ConfigError, match=f"no question under '{key}'; set input_key"):
        around(node, schema=Words).invoke({"answer": "x"})


def test_a_run_without_an_answer_raises_with_its_trace() -> None:
    with pytest.raises(RunError, match="out of order") as caught:
        around(create_conductor(conductor(plan((0, "one", [])), workers={"a": down}))).invoke(QUESTION)
    assert caught.value.trace.rounds


def test_plans_that_the_policy_forbids_are_not_run() -> None:
    solver = conductor(*[DIAMOND] * 5, policy=Policy(forbid=(Flow(reader="a", source="b"),)))
    around(create_conductor(solver)).invoke(QUESTION)
    assert asked(solver) == ["q"]


# ------------------------------------------------------------------------------------- its inside


def test_each_step_is_a_node_that_streams_its_update_in_a_graph_of_its_own() -> None:
    graph = around(create_conductor(conductor()))
    parts: list[Any] = list(graph.stream(QUESTION, stream_mode="updates", subgraphs=True))
    inner = [(name.split(":")[0], node) for namespace, update in parts for name in namespace[-1:] for node in update]
    assert inner[0] == ("solve", "plan")
    assert sorted(inner[1:3]) == [("run", "step_1_a"), ("run", "step_2_b")]
    assert inner[3:] == [("run", "step_3_a"), ("run", "step_4_b"), ("solve", "run")]
    assert list(parts[-1][1]) == ["solve"]


@pytest.mark.parametrize("mode", ["values", "updates", "checkpoints", "tasks", "debug", "custom"])
async def test_every_mode_streams_from_the_steps(mode: Any) -> None:
    graph = around(create_conductor(conductor()), saver=InMemorySaver())
    stream: Any = graph.astream(QUESTION, THREAD, stream_mode=mode, subgraphs=True)
    depths = {len(namespace) async for namespace, _ in stream}
    assert 2 in depths


def test_plan_and_steps_are_streamed_as_custom_data() -> None:
    graph = around(create_conductor(conductor()))
    parts: Any = graph.stream(QUESTION, stream_mode="custom", subgraphs=True)
    events = [event for _, event in parts]
    kinds = [event["type"].removeprefix("conductor_") for event in events]
    assert kinds[0] == "workflow_planned"
    assert sorted(kinds[1:]) == ["step_finished"] * 4 + ["step_started"] * 4
    assert json.dumps(events)


async def test_tokens_of_langchain_models_stream_from_the_steps_nodes() -> None:
    chat = GenericFakeChatModel(messages=iter([AIMessage("one two")]), name="fake")
    solver = Conductor(ScriptedModel([plan((0, "say", []))]), pool_of(a=ChatModel(chat)))
    stream: Any = around(create_conductor(solver)).astream(QUESTION, stream_mode="messages", subgraphs=True)
    parts = [part async for _, part in stream]
    replies = [message.text for message, about in parts if about["langgraph_node"] == "step_1_a"]
    assert "".join(replies) == "one two"
    assert len(replies) > 1


async def test_replies_of_core_models_stream_as_messages_of_their_steps_nodes() -> None:
    stream: Any = around(create_conductor(conductor())).astream(QUESTION, stream_mode="messages", subgraphs=True)
    replies = [(about["langgraph_node"], message.name, message.text) async for _, (message, about) in stream]
    assert sorted(replies[:2]) == [("step_1_a", "a", "look()"), ("step_2_b", "b", "count()")]
    assert [text for _, _, text in replies[2:]] == ["join(look(), count())", ANSWER, ANSWER]


async def test_without_its_inside_the_messages_of_the_node_are_the_answer() -> None:
    stream: Any = around(create_conductor(conductor())).astream(QUESTION, stream_mode="messages")
    assert [(about["langgraph_node"], message.text) async for message, about in stream] == [("solve", ANSWER)]


def test_the_node_can_be_drawn() -> None:
    drawing = around(create_conductor(conductor(), interrupt_before_run=True)).get_graph(xray=True)
    assert {"solve:plan", "solve:review", "solve:run"} <= set(drawing.nodes)


def test_the_node_publishes_input_and_output_schemas() -> None:
    node = create_conductor(conductor(), input_key="question", output_key="answer")
    assert list(node.get_input_jsonschema()["properties"]) == ["question"]
    assert list(node.get_output_jsonschema()["properties"]) == ["answer", PLAN]


def test_the_schema_of_messages_lets_langgraph_tools_show_a_chat() -> None:
    node = create_conductor(conductor(), input_key="messages", output_key="answer")
    assert node.get_input_jsonschema()["properties"]["messages"]["type"] == "array"
    assert "type" not in node.get_output_jsonschema()["properties"]["answer"]


@pytest.mark.parametrize(("profile", "model"), [(None, "conductor"), ("mini", "conductor-mini")])
def test_the_answer_has_the_same_metadata_as_the_chat_models(profile: str | None, model: str) -> None:
    chat = ChatConductor(workers=pool_of(a="Done."), planner=ScriptedModel(plan((0, "tell", []))), model=profile)
    (_, answer) = around(create_conductor(chat)).invoke(QUESTION)["messages"]
    facts = {name: told for name, told in answer.response_metadata.items() if name != "conductor"}
    assert facts == {"model_name": model, "finish_reason": "stop"}
    assert Summary.model_validate(answer.response_metadata["conductor"]).rounds[0].plan.source == "planner"


async def test_checkpoints_are_plain_json() -> None:
    saver = InMemorySaver()
    await around(create_conductor(conductor()), saver=saver).ainvoke(QUESTION, THREAD)
    checkpoints = [
        value
        async for checkpoint in saver.alist(THREAD | {"configurable": {"thread_id": "1"}})
        for key, value in checkpoint.checkpoint["channel_values"].items()
        if key.startswith("conductor") or key == "results"
    ]
    assert len(checkpoints) > 4
    assert json.dumps(checkpoints)


async def test_steps_that_do_not_need_each_other_run_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def wait(request: Request) -> None:
        if told(request) in ("look()", "count()"):
            await asyncio.wait_for(both.wait(), 5)

    workers = {name: Gated(told, wait, name=name) for name in "ab"}
    assert texts(await around(create_conductor(conductor(workers=workers))).ainvoke(QUESTION))[-1] == ANSWER


async def test_a_step_begins_as_soon_as_the_steps_that_it_reads_are_done() -> None:
    read = asyncio.Event()

    async def wait(request: Request) -> None:
        if told(request) == "slow()":
            await asyncio.wait_for(read.wait(), 5)
        elif told(request) == "read(quick())":
            read.set()

    workers = {name: Gated(told, wait, name=name) for name in "ab"}
    uneven = plan((0, "quick", []), (0, "read", [0]), (1, "slow", []), (1, "end", [0, 1, 2]))
    result = await around(create_conductor(conductor(uneven, workers=workers))).ainvoke(QUESTION)
    assert texts(result)[-1] == "end(quick(), read(quick()), slow())"


# ------------------------------------------------------------------------------------------ rounds


def test_a_second_round_may_accept_the_answer() -> None:
    solver = conductor(DIAMOND, ACCEPT, limits=Limits(rounds=2))
    assert texts(around(create_conductor(solver)).invoke(QUESTION))[-1] == ANSWER
    assert asked(solver) == ["look", "join", "count", "tell"]


def test_a_second_round_may_give_another_answer() -> None:
    solver = conductor(DIAMOND, plan((0, "better", [])), limits=Limits(rounds=2))
    result = around(create_conductor(solver, output_mode="full_history")).invoke(QUESTION)
    assert texts(result)[1:] == ["look()", "count()", "join(look(), count())", ANSWER, "better()"]


# ---------------------------------------------------------------------------- what LangGraph does


def test_the_graph_goes_where_a_command_after_the_node_sends_it() -> None:
    def route(state: MessagesState) -> Command[Literal["shout", "__end__"]]:
        return Command(goto="shout") if ANSWER in state["messages"][-1].text else Command(goto="__end__")

    def shout(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("!")]}

    builder = StateGraph(MessagesState)
    builder.add_node("solve", create_conductor(conductor()))
    builder.add_node(route)
    builder.add_node(shout)
    builder.add_edge(START, "solve")
    builder.add_edge("solve", "route")
    graph: Graph = builder.compile()
    assert texts(graph.invoke(QUESTION)) == ["q", ANSWER, "!"]


async def test_questions_sent_side_by_side_are_answered_apart() -> None:
    def fan(_: Answers) -> list[Send]:
        return [Send("solve", {"question": word}) for word in ("x", "y")]

    single = conductor(plan((0, "one", [])), plan((0, "one", [])))
    builder = StateGraph(Answers)
    builder.add_node("solve", create_conductor(single, input_key="question", output_key="answer"))
    builder.add_conditional_edges(START, fan, ["solve"])
    graph: Graph = builder.compile()
    assert (await graph.ainvoke({"answer": "both"}))["answer"] == ["both", "one()", "one()"]


def test_a_retry_of_the_node_plans_anew() -> None:
    failures = iter([down, down])

    def flaky(request: Request) -> Any:
        return next(failures, told)(request)

    solver = conductor(*[plan((0, text, [])) for text in ("first", "second", "third")], workers={"a": flaky})
    again = RetryPolicy(initial_interval=0.01, retry_on=RunError, max_attempts=3)
    assert texts(around(create_conductor(solver), retry_policy=again).invoke(QUESTION))[-1] == "third()"


async def test_a_timeout_of_the_node_ends_it_and_a_later_run_goes_on() -> None:
    stuck = asyncio.Event()

    async def wait(request: Request) -> None:
        if told(request).startswith("join") and not stuck.is_set():
            stuck.set()
            await forever(request)

    solver = conductor(workers={name: Gated(told, wait, name=name) for name in "ab"})
    graph = around(create_conductor(solver), saver=InMemorySaver(), timeout=3)
    with pytest.raises(NodeTimeoutError):
        await graph.ainvoke(QUESTION, THREAD)
    assert texts(await graph.ainvoke(None, THREAD))[-1] == ANSWER
    assert asked(solver) == ["look", "join", "count", "tell"]


def test_tools_are_run_by_the_users_graph_and_the_same_worker_goes_on() -> None:
    @tool
    def weigh(what: str) -> str:
        """Weigh something."""
        return f"{what} weighs 3 kg"

    def use(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return f"So {request.messages[-1].text}."
        return Message.assistant(tool_calls=[ToolCall(id="1", name="weigh", arguments='{"what": "it"}')])

    solver = conductor(plan((0, "look", []), (1, "weigh", [0])), workers={"a": told, "b": use})
    builder = StateGraph(MessagesState)
    builder.add_node("solve", create_conductor(solver, tools=[weigh]))
    builder.add_node("tools", ToolNode([weigh]))
    builder.add_edge(START, "solve")
    builder.add_conditional_edges("solve", tools_condition)
    builder.add_edge("tools", "solve")
    graph: Graph = builder.compile()
    result = graph.invoke(QUESTION)
    assert texts(result)[-1] == "So it weighs 3 kg."
    planner = solver.planner.model
    assert isinstance(planner, ScriptedModel)
    assert len(planner.requests) == 1


class Slow(WrapperModel):
    """Answers after 0.4 s."""

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.4)
        return await self.model.complete(request)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        completion = await self.complete(request)
        yield Delta(text=completion.text, completion=completion)


async def test_planning_and_execution_share_one_timeout() -> None:
    def node(timeout: float) -> Any:
        planner, worker = Slow(ScriptedModel(plan((0, "Answer.", [])))), Slow(ScriptedModel("Hi."))
        return create_conductor(ChatConductor({"a": worker}, planner=planner, timeout=timeout, max_retries=0))

    assert (await node(5.0).ainvoke({"messages": "hi"}))["messages"][-1].text == "Hi."
    with pytest.raises(RunError):
        await node(0.7).ainvoke({"messages": "hi"})
