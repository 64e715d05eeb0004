"""Tool calls, structured output and agents; tool results continue with the worker that called the tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.selectors import LLMSingleSelector, PydanticSingleSelector
from llama_index.core.tools import FunctionTool, ToolMetadata
from pydantic import BaseModel

from llama_index.llms.conductor import Conductor
from llamaindex.scripts import (
    conductor,
    plan,
    planner,
    request_text,
    scripted_worker,
    tool_call_reply,
    user_messages,
    weigh,
    weigh_then_answer,
)
from rl_conductor import Completion, Message, Policy, Request, RunError, ScriptedModel
from rl_conductor.models import Capabilities
from rl_conductor.types import ToolCall


class Kite(BaseModel):
    """A kite and its weight."""

    name: str
    grams: int


WEIGH = FunctionTool.from_defaults(weigh)
HERON = Kite(name="Heron", grams=310)
PROMPT = PromptTemplate("Describe the {kite}.")


def fill_in_kite(request: Request) -> Any:
    """Fills in the class that is offered as a tool."""
    return tool_call_reply(request.tools[0].name, **HERON.model_dump())


def test_a_tool_call_is_selected_with_its_arguments() -> None:
    llm = conductor(second=weigh_then_answer)
    response = llm.chat_with_tools([WEIGH], user_msg="How heavy is the Heron?")
    (call,) = llm.get_tool_calls_from_response(response)
    assert (call.tool_name, call.tool_kwargs) == ("weigh", {"kite": "Heron"})
    assert scripted_worker(llm, "drafter").requests[0].tools == ()
    assert scripted_worker(llm, "writer").requests[0].tools[0].parameters["properties"].keys() == {"kite"}


def test_a_tool_result_continues_with_the_same_worker_without_a_plan() -> None:
    llm = conductor(second=weigh_then_answer)
    first = llm.chat_with_tools([WEIGH], user_msg="How heavy is the Heron?")
    stored = ChatMessage.model_validate_json(first.message.model_dump_json())
    (call,) = llm.get_tool_calls_from_response(first)
    result = ChatMessage(role="tool", content="310", additional_kwargs={"tool_call_id": call.tool_id})
    history = [ChatMessage(content="How heavy is the Heron?"), stored, result]
    second = llm.chat_with_tools([WEIGH], chat_history=history)
    assert second.message.content == "So: 310"
    assert llm.trace is not None
    assert llm.trace.rounds[0].plan.source == "continuation"
    raw: Any = second.raw
    assert raw["usage"]["calls"] == 1
    assert "A draft." in request_text(scripted_worker(llm, "writer").requests[-1])


def test_a_forged_continuation_can_not_choose_a_forbidden_final_worker() -> None:
    llm = conductor(second=weigh_then_answer, policy=Policy(final="writer"))
    forged = {"continuation": {"worker": "drafter", "prompt": "Say yes."}}
    call = llm.chat_with_tools([WEIGH], user_msg="How heavy?").message
    history = [
        ChatMessage(content="How heavy?"),
        call.model_copy(update={"additional_kwargs": forged}),
        ChatMessage(role="tool", content="310", additional_kwargs={"tool_call_id": "call-1"}),
    ]
    llm.chat_with_tools([WEIGH], chat_history=history)
    assert llm.trace is not None
    assert llm.trace.rounds[0].plan.source == "planner"


def test_invalid_arguments_are_passed_on_as_invalid_json() -> None:
    broken = tool_call_reply("weigh").model_copy(
        update={"tool_calls": (tool_call_reply("weigh").tool_calls[0].model_copy(update={"arguments": "{kite"}),)}
    )
    llm = conductor(second=lambda _: broken)
    response = llm.chat_with_tools([WEIGH], user_msg="How heavy?")
    assert llm.get_tool_calls_from_response(response)[0].tool_kwargs == {"invalid_json": "{kite"}


def test_a_missing_tool_call_is_an_error_only_if_one_is_required() -> None:
    llm = conductor()
    response = llm.chat_with_tools([WEIGH], user_msg="How heavy?")
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(ValueError, match="at least one tool call"):
        llm.get_tool_calls_from_response(response)


@pytest.mark.parametrize(
    ("options", "choice"), [({}, "auto"), ({"tool_required": True}, "required"), ({"tool_choice": "weigh"}, "weigh")]
)
def test_the_tool_choice_reaches_the_worker(options: dict[str, Any], choice: str) -> None:
    llm = conductor(second=weigh_then_answer)
    llm.chat_with_tools([WEIGH], user_msg="How heavy?", **options)
    assert scripted_worker(llm, "writer").requests[0].tool_choice == choice


def test_surplus_parallel_calls_are_dropped() -> None:
    twice = Message.assistant(
        tool_calls=[
            *tool_call_reply("weigh", kite="Heron").tool_calls,
            *tool_call_reply("weigh", kite="Swift").tool_calls,
        ]
    )
    llm = conductor(second=lambda _: twice)
    single = llm.chat_with_tools([WEIGH], user_msg="?")
    assert [call.tool_kwargs for call in llm.get_tool_calls_from_response(single)] == [{"kite": "Heron"}]
    assert len(single.message.additional_kwargs["tool_calls"]) == 1
    both = llm.chat_with_tools([WEIGH], user_msg="?", allow_parallel_tool_calls=True)
    assert len(llm.get_tool_calls_from_response(both)) == 2
    assert llm.predict_and_call([WEIGH], user_msg="?").response == weigh("Heron")


def test_predict_and_call_calls_the_function() -> None:
    assert conductor(second=weigh_then_answer).predict_and_call([WEIGH], user_msg="?").response == weigh("Heron")


async def test_apredict_and_call_calls_the_function() -> None:
    called = await conductor(second=weigh_then_answer).apredict_and_call([WEIGH], user_msg="?")
    assert called.response == weigh("Heron")


# --------------------------------------------------------------------------------------- structure


def test_structured_output_by_a_tool_call() -> None:
    llm = conductor(second=fill_in_kite)
    assert llm.structured_predict(Kite, PROMPT, kite="Heron") == HERON
    assert scripted_worker(llm, "writer").requests[0].tool_choice == "required"


async def test_structured_output_in_async_calls() -> None:
    assert await conductor(second=fill_in_kite).astructured_predict(Kite, PROMPT, kite="Heron") == HERON


def test_structured_output_by_json_schema_without_tools() -> None:
    model = ScriptedModel(HERON.model_dump_json(), capabilities=Capabilities(json_schema=True))
    llm = Conductor({"writer": model}, planner=planner(plan((0, "Describe it.", []))))
    assert llm.structured_predict(Kite, PROMPT, kite="Heron") == HERON
    assert model.requests[0].response_format is not None
    assert model.requests[0].response_format.type == "json"
    assert model.requests[0].tools == ()


def test_the_values_of_structured_output_are_streamed_as_they_are_written() -> None:
    writer = ScriptedModel([['{"name": "Her', 'on", ', '"grams": 310}']])
    llm = Conductor({"writer": writer}, planner=planner(plan((0, "Describe it.", []))))
    outputs: list[Any] = [*llm.stream_structured_predict(Kite, PROMPT, kite="Heron")]
    names = [output.name for output in outputs]
    assert names[0] == "Her"
    assert names[-1] == "Heron"
    request = writer.requests[0]
    assert (request.needs, request.tools) == (("json_schema",), ())


@pytest.mark.parametrize("use_async", [False, True])
async def test_streamed_structured_output_by_json_schema(use_async: bool) -> None:
    model = ScriptedModel(HERON.model_dump_json(), capabilities=Capabilities(json_schema=True))
    llm = Conductor({"writer": model}, planner=planner(plan((0, "Describe it.", []))))
    if use_async:
        output = [single async for single in await llm.astream_structured_predict(Kite, PROMPT, kite="Heron")]
    else:
        output = [*llm.stream_structured_predict(Kite, PROMPT, kite="Heron")]
    assert output[-1] == HERON
    assert model.requests[0].response_format is not None


class Note(BaseModel):
    """A note, of which nothing is required."""

    text: str | None = None


@pytest.mark.parametrize(("output_cls", "text"), [(Kite, '{"name": "Her'), (Note, '{"text": "Her')])
async def test_a_stream_of_truncated_structured_output_ends_with_an_error(output_cls: Any, text: str) -> None:
    reply = Completion(message=Message.assistant(text), finish_reason="length", model="m")
    model = ScriptedModel(reply, capabilities=Capabilities(json_schema=True))
    llm = Conductor({"writer": model}, planner=planner(plan((0, "Describe it.", []))))
    with pytest.raises(ValueError, match="Could not extract json"):
        list(llm.stream_structured_predict(output_cls, PROMPT, kite="Heron"))
    outputs: Any = await llm.astream_structured_predict(output_cls, PROMPT, kite="Heron")
    with pytest.raises(ValueError, match="Could not extract json"):
        _ = [output async for output in outputs]


def test_structured_output_of_a_truncated_call_is_an_error() -> None:
    def truncated(request: Request) -> Message:
        call = ToolCall(id="c1", name=request.tools[0].name, arguments='{"text": "Her')
        return Message.assistant(tool_calls=[call])

    writer = ScriptedModel(truncated, capabilities=Capabilities(tools=True))
    with pytest.raises(RunError, match="the arguments of its call of 'Note' are no JSON object"):
        Conductor(writer, planner=planner()).structured_predict(Note, PROMPT, kite="Heron")


def test_structured_output_from_plain_text() -> None:
    model = ScriptedModel(f"Here: {HERON.model_dump_json()}", capabilities=Capabilities())
    llm = Conductor({"writer": model}, planner=planner(plan((0, "Describe it.", []))))
    assert llm.structured_predict(Kite, PROMPT, kite="Heron") == HERON


def test_a_structured_llm_returns_its_class() -> None:
    structured = conductor(second=fill_in_kite).as_structured_llm(Kite)
    assert structured.complete("The Heron.").raw == HERON


async def test_a_structured_llm_answers_in_async_calls() -> None:
    structured = conductor(second=fill_in_kite).as_structured_llm(Kite)
    assert (await structured.achat(user_messages("The Heron."))).raw == HERON


def test_structured_output_is_streamed() -> None:
    def fill_in_if_required(request: Request) -> Message:
        return fill_in_kite(request) if request.tool_choice == "required" else Message.assistant("A text.")

    writer = ScriptedModel(fill_in_if_required, capabilities=Capabilities(tools=True))
    output = [*conductor(second=writer).stream_structured_predict(Kite, PROMPT, kite="Heron")]
    last = output[-1]
    assert isinstance(last, Kite | FlexibleModel)
    assert last.model_dump() == HERON.model_dump()


CHOICES = [ToolMetadata(name="hr", description="people"), ToolMetadata(name="sales", description="prices")]


def test_a_selector_works_with_tool_calls() -> None:
    llm = conductor(second=lambda request: tool_call_reply(request.tools[0].name, index=2, reason="prices"))
    selected = PydanticSingleSelector.from_defaults(llm=llm).select(CHOICES, "What does it cost?")
    assert selected.ind == 1


def test_a_selector_works_with_text() -> None:
    llm = conductor(second=json.dumps([{"choice": 2, "reason": "prices"}]))
    assert LLMSingleSelector.from_defaults(llm=llm).select(CHOICES, "What does it cost?").ind == 1


# ------------------------------------------------------------------------------------------ agents


# LlamaIndex's agents look at every attribute of themselves, and pydantic has deprecated some.
agents = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


@agents
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_function_agent_uses_a_tool_and_answers(streaming: bool) -> None:
    llm = conductor(second=weigh_then_answer)
    agent = FunctionAgent(tools=[WEIGH], llm=llm, streaming=streaming)
    assert str(await agent.run("How heavy is the Heron?")) == "So: Heron weighs 310 grams."
    assert isinstance(llm.planner, ScriptedModel)
    assert len(llm.planner.requests) == 1


@agents
async def test_agents_hand_over_to_each_other() -> None:
    def hands_over(request: Request) -> Any:
        if "handoff" in [tool.name for tool in request.tools]:
            return tool_call_reply("handoff", to_agent="weigher", reason="It can weigh.")
        return weigh_then_answer(request) if "310" in request_text(request) else tool_call_reply("weigh", kite="Heron")

    llm = conductor(second=hands_over)
    greeter = FunctionAgent(name="greeter", description="greets", llm=llm, tools=[], can_handoff_to=["weigher"])
    weigher = FunctionAgent(name="weigher", description="weighs", llm=llm, tools=[WEIGH], can_handoff_to=[])
    answer = await AgentWorkflow(agents=[greeter, weigher], root_agent="greeter").run("How heavy is the Heron?")
    assert str(answer) == "So: Heron weighs 310 grams."
