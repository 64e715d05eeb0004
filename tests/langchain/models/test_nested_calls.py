"""The calls and the tools inside of agents and functions are in the trace, as those of the core's own agents are."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel, FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from typing_extensions import override

from core.runs import plan
from langchain_conductor import ChatConductor
from rl_conductor import Request, RunError, ScriptedModel, Trace
from rl_conductor.trace import Call, Nested

LONE = plan((0, "Answer.", []))


class ToolCaller(GenericFakeChatModel):
    """Accepts tools, and calls the one that its messages name."""

    @override
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


@tool
def weigh(kite: str) -> str:
    """Weighs a kite."""
    return f"{kite}: 310 g"


@tool
def fail(kite: str) -> str:
    """Fails."""
    raise ValueError(f"{kite} with sk-very-secret")


def agent_with(work: Any) -> Any:
    call = {"name": work.name, "args": {"kite": "Heron"}, "id": "1"}
    model = ToolCaller(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("So: 310 g")]))
    return create_agent(model, [work])


async def run_of(worker: Any) -> Trace:
    chat = ChatConductor({"worker": worker}, planner=ScriptedModel(lambda _: LONE), max_retries=0)
    try:
        return await chat.conductor.run(Request.user("How heavy?"))
    except RunError as error:
        return error.trace


def nested_in(trace: Trace) -> tuple[Call, Nested]:
    (call,) = trace.results[0].calls
    assert call.nested is not None
    return call, call.nested


async def test_the_calls_and_tools_of_an_agent_are_in_the_trace() -> None:
    trace = await run_of(agent_with(weigh))
    call, nested = nested_in(trace)
    assert [(each.model, each.outcome) for each in nested.calls] == [("toolcaller:ToolCaller", "ok")] * 2
    first, last = (each.completion for each in nested.calls)
    assert first is not None
    assert [(use.name, use.arguments) for use in first.message.tool_calls] == [("weigh", '{"kite": "Heron"}')]
    assert last is not None
    assert last.text == "So: 310 g"
    assert sum(each.usage.calls for each in nested.calls) == call.usage.calls
    assert all(call.started <= each.started <= call.started + call.seconds for each in nested.calls)
    (use,) = nested.tools
    assert (use.name, use.arguments, use.result, use.is_error) == ("weigh", '{"kite":"Heron"}', "Heron: 310 g", False)
    assert Trace.model_validate_json(trace.model_dump_json()).results[0].calls[0].nested == nested


async def test_a_tool_that_fails_is_in_the_trace_without_the_text_of_its_error() -> None:
    _, nested = nested_in(await run_of(agent_with(fail)))
    (use,) = nested.tools
    assert (use.result, use.is_error) == ("error: ValueError", True)


async def test_a_model_that_fails_inside_of_an_agent_is_in_the_trace() -> None:
    model = FakeListChatModel(responses=["Hi."], error_on_chunk_number=0)

    async def ask(task: str) -> str:
        return "".join([str(chunk.text) async for chunk in model.astream(task)])

    _, nested = nested_in(await run_of(ask))
    (call,) = nested.calls
    assert (call.outcome, call.error, call.completion) == ("error", "FakeListChatModelError", None)


@pytest.mark.parametrize("model", [FakeListChatModel(responses=["Hi."]), FakeListLLM(responses=["Hi."])])
async def test_the_models_that_a_function_calls_are_in_the_trace(model: Any) -> None:
    def ask(task: str) -> Any:
        return model.invoke(task)

    _, nested = nested_in(await run_of(ask))
    assert [call.completion and call.completion.text for call in nested.calls] == ["Hi."]


async def test_a_tool_that_is_the_worker_itself_is_not_inside_of_it() -> None:
    trace = await run_of(weigh)
    assert [call.nested for call in trace.results[0].calls] == [None]
