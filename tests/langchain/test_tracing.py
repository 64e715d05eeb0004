"""LangChain's callbacks get the plan and every call: nested, named, in time, and once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    UsageMetadataCallbackHandler,
    get_usage_metadata_callback,
)
from langchain_core.language_models import BaseChatModel, FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tracers import BaseTracer, Run
from langgraph.graph import START, MessagesState, StateGraph

from core.runs import SOON, Gated, busy, down, plan
from langchain_conductor import ChatConductor, create_conductor
from rl_conductor import RunError, ScriptedModel
from rl_conductor.types import Completion, Message, Usage

DIAMOND = plan((0, "look", []), (1, "count", []), (0, "join", ["all"]))
PAIR = plan((1, "draft", []), (0, "answer", ["all"]))

TREE: dict[str, Any] = {
    "ChatConductor": {
        "planner": {"scripted:planner": {}},
        "step 1: a": {"scripted:a": {}},
        "step 2: b": {"scripted:b": {}},
        "step 3: a": {"scripted:a": {}},
    }
}


class Recorder(BaseTracer):
    """Keeps the finished root runs."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)

    @property
    def tree(self) -> dict[str, Any]:
        """Names inside of names."""
        return {name: inner for root in self.roots for name, inner in tree_of(root).items()}

    def run(self, name: str) -> Run:
        """The first run of this name."""
        return next(run for root in self.roots for run in every(root) if run.name == name)


def every(run: Run) -> list[Run]:
    return [run, *(inner for child in run.child_runs for inner in every(child))]


def tree_of(run: Run) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for child in sorted(run.child_runs, key=lambda child: child.name):
        inner |= tree_of(child)
    return {run.name: inner}


def conducting(a: Any = "from a", b: Any = "from b", plans: Any = DIAMOND, **options: Any) -> ChatConductor:
    workers = {"a": a, "b": b}
    workers = {
        name: model if isinstance(model, Runnable | ScriptedModel) else ScriptedModel(model, name=name)
        for name, model in workers.items()
    }
    return ChatConductor(workers=workers, planner=ScriptedModel(plans, name="planner"), **options)


async def _astream(chat: Runnable[Any, Any], config: Any) -> None:
    async for _ in chat.astream("Hello", config):
        pass


async def _aevents(chat: Runnable[Any, Any], config: Any) -> None:
    async for _ in chat.astream_events("Hello", config, version="v2"):
        pass


def _in_threads(chat: Runnable[Any, Any], config: Any) -> None:
    (thread,) = [threading.Thread(target=chat.invoke, args=("Hello", config))]
    thread.start()
    thread.join()


WAYS: dict[str, Callable[[Runnable[Any, Any], Any], Any]] = {
    "invoke": lambda chat, config: chat.invoke("Hello", config),
    "stream": lambda chat, config: list(chat.stream("Hello", config)),
    "ainvoke": lambda chat, config: asyncio.run(chat.ainvoke("Hello", config)),
    "astream": lambda chat, config: asyncio.run(_astream(chat, config)),
    "astream_events": lambda chat, config: asyncio.run(_aevents(chat, config)),
    "batch": lambda chat, config: chat.batch(["Hello"], config),
    "in a thread": _in_threads,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_plan_and_calls_are_runs_inside_of_the_chat_models(way: Callable[..., Any]) -> None:
    recorder = Recorder()
    way(conducting(), {"callbacks": [recorder]})
    assert recorder.tree == TREE


async def test_calls_are_runs_also_where_a_graph_streams_messages() -> None:
    recorder = Recorder()
    agent: Any = create_agent(conducting())
    async for _ in agent.astream(QUESTION, {"callbacks": [recorder]}, stream_mode="messages"):
        pass
    assert recorder.tree["LangGraph"]["model"]["ChatConductor"] == TREE["ChatConductor"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_inside_of_a_chain_they_are_where_the_chat_model_is(way: Callable[..., Any]) -> None:
    recorder = Recorder()
    way(RunnableLambda(lambda text: text) | conducting(), {"callbacks": [recorder]})
    assert recorder.tree["RunnableSequence"]["ChatConductor"] == TREE["ChatConductor"]


def test_a_run_has_prompt_reply_and_usage() -> None:
    recorder = Recorder()
    usage = Usage(input_tokens=7, output_tokens=3, calls=1)
    reply = Completion(message=Message.assistant("from b"), usage=usage, model="vendor-b")
    conducting(b=[reply]).invoke("Hello", {"callbacks": [recorder]})
    last = recorder.run("step 3: a")
    assert last.inputs["subtask"] == "join"
    assert last.inputs["access"] == [0, 1]
    assert "from b" in last.inputs["prompt"]
    assert last.outputs == {"reply": "from a"}
    told_of = {name: last.extra["metadata"][name] for name in ("round", "step", "worker", "attempt")}
    assert told_of == {"round": 0, "step": 2, "worker": "a", "attempt": 1}
    call = recorder.run("scripted:b")
    assert "count" in call.inputs["prompts"][0]
    assert call.outputs is not None
    message = call.outputs["generations"][0][0]["message"]["kwargs"]
    assert message["usage_metadata"] == {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    assert message["response_metadata"]["model_name"] == "vendor-b"


def test_tracer_metadata_of_the_chat_model_does_not_reach_its_workers() -> None:
    recorder = Recorder()
    conducting(temperature=0.5, max_tokens=7).invoke("Hello", {"callbacks": [recorder], "metadata": {"team": "red"}})
    about = {run.name: run.extra["metadata"] for run in every(recorder.roots[0])}
    assert about["ChatConductor"]["ls_temperature"] == 0.5
    for name in ("planner", "scripted:planner", "step 2: b", "scripted:b"):
        assert about[name]["team"] == "red"
        assert not about[name].keys() & {"ls_temperature", "ls_max_tokens", "ls_integration"}
    assert "ls_model_name" not in about["step 2: b"]
    assert about["scripted:b"]["ls_model_name"] == "b"


def test_steps_side_by_side_are_runs_side_by_side() -> None:
    recorder = Recorder()
    chat = conducting(a=ScriptedModel("from a", delay=0.2), b=ScriptedModel("from b", delay=0.2))
    chat.invoke("Hello", {"callbacks": [recorder]})
    first, second = recorder.run("step 1: a"), recorder.run("step 2: b")
    assert first.end_time is not None
    assert second.end_time is not None
    assert max(first.start_time, second.start_time) < min(first.end_time, second.end_time)
    assert (first.end_time - first.start_time).total_seconds() >= 0.2


def test_failures_and_attempts_are_shown() -> None:
    recorder = Recorder()
    replies: list[Any] = [busy(None), "from a"]  # type: ignore[arg-type]
    chat = conducting(a=replies, b=down, plans=plan((0, "look", [])))
    chat.invoke("Hello", {"callbacks": [recorder]})
    steps = [run for run in every(recorder.roots[0]) if run.name == "step 1: a"]
    assert [(run.extra["metadata"]["attempt"], run.error is None) for run in steps] == [(1, False), (2, True)]
    assert "busy" in str(recorder.run("scripted:a").error)
    with pytest.raises(RunError):
        conducting(a=down, b=down, max_retries=0).invoke("Hello", {"callbacks": [recorder]})
    assert "out of order" in str(recorder.roots[1].error)


def test_a_chat_model_that_works_reports_itself_and_is_not_reported_twice() -> None:
    recorder = Recorder()
    chat = conducting(b=FakeListChatModel(responses=["from b"]))
    chat.invoke("Hello", {"callbacks": [recorder]})
    assert recorder.tree["ChatConductor"]["step 2: b"] == {"FakeListChatModel": {}}
    calls = [run for run in every(recorder.roots[0]) if run.run_type in ("llm", "chat_model") and run.parent_run_id]
    assert len(calls) == 4


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_agent_as_a_worker_shows_its_runs(way: Callable[..., Any]) -> None:
    recorder = Recorder()

    async def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [await FakeListChatModel(responses=["from b"]).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
    way(conducting(b=graph), {"callbacks": [recorder]})
    assert recorder.tree["ChatConductor"]["step 2: b"]["LangGraph"]["answer"] == {"FakeListChatModel": {}}


def test_a_conductor_in_the_pool_shows_its_runs() -> None:
    recorder = Recorder()
    inner = conducting(plans=plan((1, "deep", [])))
    conducting(b=inner, plans=plan((1, "look", []))).invoke("Hello", {"callbacks": [recorder]})
    inside = recorder.tree["ChatConductor"]["step 1: b"]
    assert inside == {"planner": {"scripted:planner": {}}, "b": {"scripted:b": {}}}


@pytest.mark.parametrize("way", ["ainvoke", "astream", "invoke", "stream"])
def test_usage_handlers_count_a_run_once(way: str) -> None:
    handler = UsageMetadataCallbackHandler()
    with get_usage_metadata_callback() as in_context:
        WAYS[way](conducting(b=FakeListChatModel(responses=["done"])), {"callbacks": [handler]})
    usage = conducting(b=FakeListChatModel(responses=["done"])).invoke("Hello").usage_metadata
    assert handler.usage_metadata == in_context.usage_metadata == {"conductor": usage}


@pytest.mark.parametrize("way", ["ainvoke", "astream", "invoke", "stream"])
def test_usage_handlers_count_a_run_that_failed(way: str) -> None:
    handler = UsageMetadataCallbackHandler()
    with get_usage_metadata_callback() as in_context, pytest.raises(RunError) as caught:
        WAYS[way](conducting(a=down, b=down, max_retries=0), {"callbacks": [handler]})
    counted = handler.usage_metadata["conductor"]["total_tokens"]
    assert counted == caught.value.trace.usage.total_tokens > 0
    assert in_context.usage_metadata == handler.usage_metadata


def test_usage_handlers_count_the_workers_of_a_node() -> None:
    handler = UsageMetadataCallbackHandler()
    create_conductor(conducting()).invoke({"messages": "Hello"}, {"callbacks": [handler]})
    assert set(handler.usage_metadata) == {"scripted:planner", "scripted:a", "scripted:b"}


async def test_the_result_of_a_run_has_the_usage_of_all_its_calls() -> None:
    class Results(AsyncCallbackHandler):
        def __init__(self) -> None:
            self.outputs: list[Any] = []

        async def on_llm_end(self, response: LLMResult, **_: Any) -> None:
            self.outputs += [response.llm_output] if response.llm_output else []

    handler, chat = Results(), conducting()
    result = await chat.agenerate([[HumanMessage("Hello")], [HumanMessage("Hello")]], callbacks=[handler])
    usage = [reply[0].message.usage_metadata["total_tokens"] for reply in result.generations]  # type: ignore[union-attr]
    assert [output["token_usage"]["total_tokens"] for output in handler.outputs] == usage
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["total_tokens"] == sum(usage)
    assert result.llm_output["model_name"] == "conductor"


class Heard(AsyncCallbackHandler):
    """Keeps the custom events."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, UUID]] = []

    async def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **_: Any) -> None:
        self.told.append((name, data, run_id))


@pytest.mark.parametrize("way", ["ainvoke", "astream", "invoke", "stream"])
def test_plan_and_steps_are_announced_as_they_happen(way: str) -> None:
    listener, recorder = Heard(), Recorder()
    WAYS[way](conducting(), {"callbacks": [listener, recorder]})
    names = [name for name, _, _ in listener.told]
    assert names[0] == "conductor_workflow_planned"
    assert names[-1] == "conductor_step_finished"
    assert {run_id for _, _, run_id in listener.told} == {recorder.roots[0].id}
    assert listener.told[0][1]["steps"][2] == {"step": 2, "worker": "a", "subtask": "join", "access": [0, 1]}
    assert listener.told[-1][1]["status"] == "ok"


def test_a_plan_that_is_thrown_away_is_announced() -> None:
    listener = Heard()
    asyncio.run(conducting(plans=["nonsense", DIAMOND]).ainvoke("Hello", {"callbacks": [listener]}))
    assert [name for name, _, _ in listener.told][:2] == ["conductor_plan_rejected", "conductor_workflow_planned"]


TOLD = ["workflow_planned", "step_started", "step_finished", "step_started", "step_finished"]
QUESTION: Any = {"messages": "Hello"}


def event_types(parts: Any) -> list[str]:
    """Lists the events of custom data."""
    return [part["type"].removeprefix("conductor_") for part in parts]


def graph_around(ask: Callable[..., Any]) -> Any:
    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_a_graph_that_streams_custom_data_shows_plan_and_steps(way: str) -> None:
    chat = conducting(plans=PAIR)
    listener = Heard()
    graph = graph_around(lambda _: WAYS[way](chat, {"callbacks": [listener]}) and None)
    parts = list(graph.stream(QUESTION, stream_mode="custom"))
    assert event_types(parts) == TOLD
    assert parts == [data for _, data, _ in listener.told]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_is_awaited_shows_them_while_they_happen(*, stream: bool) -> None:
    seen = asyncio.Event()
    last = Gated("the answer", lambda _: seen.wait(), name="a")
    agent: Any = create_agent(conducting(a=last, plans=PAIR, streaming=stream))
    parts = []
    async with asyncio.timeout(SOON):
        async for part in agent.astream(QUESTION, stream_mode="custom"):
            parts.append(part)
            if part["type"] == "conductor_step_started" and part["worker"] == "a":
                seen.set()
    assert event_types(parts) == TOLD


def test_custom_events_of_a_conductor_in_a_workers_chain_are_not_shown() -> None:
    inner = RunnableLambda(lambda text: text) | conducting(plans=PAIR)
    graph = graph_around(lambda _: conducting(b=inner, plans=PAIR).invoke("Hello") and None)
    assert event_types(graph.stream(QUESTION, stream_mode="custom")) == TOLD


def test_a_slow_listener_does_not_hold_up_other_runs() -> None:
    listening, over = threading.Event(), threading.Event()
    is_shown: list[bool] = []

    class Slow(BaseCallbackHandler):
        def on_llm_start(self, *_: Any, **__: Any) -> None:
            listening.set()
            is_shown.append(over.wait(SOON))

    chat = conducting()
    slow = threading.Thread(target=chat.invoke, args=("Hello", {"callbacks": [Slow()]}))
    slow.start()
    assert listening.wait(SOON)
    chat.invoke("Hello")
    over.set()
    slow.join()
    assert is_shown
    assert all(is_shown)


@pytest.mark.parametrize("drafter", [ScriptedModel("a draft"), GenericFakeChatModel(messages=iter(["a draft"] * 2))])
def test_a_graph_that_streams_messages_shows_the_answer_and_no_draft(drafter: Any) -> None:
    chat = conducting(a="the answer", b=drafter, plans=plan((1, "draft", []), (0, "answer", ["all"])))

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    question: Any = {"messages": "Hello"}
    chunks: Any = [chunk for chunk, _ in graph.stream(question, stream_mode="messages")]
    assert "".join(chunk.text for chunk in chunks) == "the answer"
    assert len(chunks) > 1


def test_a_call_outside_of_langchain_has_no_runs() -> None:
    recorder = Recorder()
    chat = conducting()
    chat.invoke("Hello", {"callbacks": [recorder]})
    assert chat.conductor.run_sync("Hello").text == "from a"
    assert len(recorder.roots) == 1


class Broken(BaseCallbackHandler):
    """A handler that fails at each run inside of another."""

    def on_chain_start(self, *_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")


def test_the_warning_about_a_handler_that_fails_names_its_class(caplog: pytest.LogCaptureFixture) -> None:
    conducting().invoke("Hello", {"callbacks": [Broken()]})
    warnings = {record.getMessage() for record in caplog.records if "by zero" in record.getMessage()}
    assert warnings == {"Error in Broken.on_chain_start callback: ZeroDivisionError('by zero')"}


def test_local_callbacks_of_the_chat_model_do_not_get_its_workers_calls() -> None:
    class Own(BaseCallbackHandler):
        starts = 0

        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            Own.starts += 1

        def on_llm_start(self, *_: Any, **__: Any) -> None:
            Own.starts += 1

    chat: BaseChatModel = conducting(callbacks=[Own()])
    chat.invoke("Hello")
    list(chat.stream("Hello"))
    assert Own.starts == 2
