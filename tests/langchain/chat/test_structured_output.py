"""Structured output over chat models of vendors: JSON mode, strict schemas, and dicts that are streamed in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core import exceptions
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from typing_extensions import TypedDict

from core.models.wire.base import SECRET
from core.runs import down, plan
from core.scripted_guardrails import SECRET as PHONE
from core.scripted_guardrails import Hide
from langchain_conductor import ChatConductor
from langchain_conductor.models.json_replies import json_reply
from langchain_vendor import COUNTS, REFUSAL, TRUNCATED_JSON, AnthropicVendor, ResponsesVendor, Vendor
from rl_conductor import Request, RunError, ScriptedModel, model
from rl_conductor.execution.guarding import WITHHELD
from rl_conductor.integration import run_sync
from rl_conductor.types import Completion, JsonFormat, Message, ToolCall

REFUSED = getattr(exceptions, "ModelRefusalError", OutputParserException)
"""LangChain's error for refusals since langchain-core 1.7.5; before, it was that of any parser, and parsers of tool
calls returned `None` for a reply without any."""


class Place(BaseModel):
    """A place."""

    city: str


class PlaceDict(TypedDict):
    """A place."""

    city: str


CLOSED = {
    "title": "Place",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = "In 'Ulm' in JSON"


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


@pytest.fixture
def other_vendor() -> Iterator[AnthropicVendor]:
    with AnthropicVendor.running() as service:
        yield service


def openai_chat(vendor: Vendor, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o-mini", base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0, **options)


@pytest.fixture(params=["ChatOpenAI", "core"])
def worker(request: pytest.FixtureRequest, vendor: Vendor) -> Iterator[Any]:
    if request.param == "ChatOpenAI":
        yield openai_chat(vendor)
        return
    core = model("openai:gpt-4o-mini", base_url=f"{vendor.url}/v1", api_key=SECRET, dialect="openai")
    yield core
    run_sync(core.aclose())


def conductor(worker: Any, **options: Any) -> ChatConductor:
    return ChatConductor({"writer": worker}, planner=ScriptedModel(plan((0, "Answer.", []))), max_retries=0, **options)


def schema_of(vendor: Vendor) -> dict[str, Any]:
    sent: dict[str, Any] = vendor.last.body["response_format"]["json_schema"]
    return sent


# ------------------------------------------------------------------------- replies that are no object


@pytest.fixture(params=["ChatOpenAI", "core"])
def make_worker(request: pytest.FixtureRequest, vendor: Vendor) -> Iterator[Callable[[str], Any]]:
    models: list[Any] = []

    def make(name: str) -> Any:
        url = f"{vendor.url}/v1"
        if request.param == "ChatOpenAI":
            return ChatOpenAI(model=name, base_url=url, api_key=SECRET, max_retries=0)
        models.append(model(f"openai:{name}", base_url=url, api_key=SECRET, dialect="openai"))
        return models[-1]

    yield make
    for each in models:
        run_sync(each.aclose())


def test_a_truncated_answer_is_a_parsing_error_with_the_raw_message(make_worker: Callable[[str], Any]) -> None:
    output: Any = conductor(make_worker("truncating")).with_structured_output(Place, include_raw=True).invoke(QUESTION)
    assert output["parsed"] is None
    assert "max_tokens" in str(output["parsing_error"])
    assert output["raw"].response_metadata["finish_reason"] == "length"
    assert output["raw"].content == TRUNCATED_JSON
    assert output["raw"].usage_metadata["output_tokens"] > COUNTS.output


def test_a_truncated_answer_that_is_nested_deeply_is_a_parsing_error() -> None:
    reply = Completion(message=Message.assistant("[" * 100_000), finish_reason="length", model="m")
    output: Any = conductor(ScriptedModel([reply])).with_structured_output(Place, include_raw=True).invoke(QUESTION)
    assert "max_tokens" in str(output["parsing_error"])


@pytest.mark.parametrize("schema", [Place, PlaceDict])
@pytest.mark.parametrize(
    ("arguments", "finish_reason", "error"),
    [
        ('{"city": "Düssel', "length", "max_tokens"),
        ('{"city": "Düssel', "tool_calls", "no JSON object"),
        ('["Düsseldorf"]', "tool_calls", "no JSON object"),
    ],
)
def test_a_tool_call_without_valid_arguments_is_an_error(
    schema: Any, arguments: str, finish_reason: Any, error: str
) -> None:
    def reply(request: Request) -> Completion:
        call = ToolCall(id="c1", name=request.tools[0].name, arguments=arguments)
        return Completion(message=Message.assistant(tool_calls=[call]), finish_reason=finish_reason, model="m")

    chat = conductor(ScriptedModel(reply))
    structured = chat.with_structured_output(schema, method="function_calling")
    with pytest.raises(RunError, match=error):
        structured.invoke(QUESTION)
    with pytest.raises(RunError, match=error):
        list(structured.stream(QUESTION))
    raw: Any = chat.with_structured_output(schema, method="function_calling", include_raw=True).invoke(QUESTION)
    assert (raw["parsed"], type(raw["parsing_error"])) == (None, OutputParserException)


@pytest.mark.parametrize("text", ['{"city": "Oslo"}', '```json\n{"city": "Oslo"}\n```'])
def test_an_answer_that_ends_with_its_json_at_max_tokens_is_parsed(text: str) -> None:
    reply = Completion(message=Message.assistant(text), finish_reason="length", model="m")
    assert conductor(ScriptedModel([reply])).with_structured_output(Place).invoke(QUESTION) == Place(city="Oslo")


def test_a_truncated_answer_without_the_raw_message_is_langchains_error(make_worker: Callable[[str], Any]) -> None:
    chat = conductor(make_worker("truncating")).with_structured_output(Place)
    with pytest.raises(OutputParserException, match="max_tokens"):
        chat.invoke(QUESTION)
    with pytest.raises(OutputParserException, match="max_tokens"):
        list(chat.stream(QUESTION))


@pytest.mark.parametrize("schema", [Place, CLOSED])
def test_a_truncated_answer_of_the_responses_api_is_langchains_error(schema: Any) -> None:
    with ResponsesVendor.running() as vendor:
        options: Any = {"base_url": f"{vendor.url}/v1", "api_key": SECRET, "max_retries": 0}
        worker = ChatOpenAI(model="truncating", use_responses_api=True, **options)
        chat = conductor(worker).with_structured_output(schema)
        with pytest.raises(OutputParserException, match="max_tokens"):
            chat.invoke(QUESTION)
        with pytest.raises(OutputParserException, match="max_tokens"):
            list(chat.stream(QUESTION))


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_a_refusal_is_the_raw_message(make_worker: Callable[[str], Any], method: Any) -> None:
    chat = conductor(make_worker("refusing")).with_structured_output(Place, method=method, include_raw=True)
    output: Any = chat.invoke(QUESTION)
    assert output["parsed"] is None
    assert output["raw"].text == REFUSAL
    assert output["raw"].response_metadata["finish_reason"] == "content_filter"
    if method != "function_calling" or REFUSED is not OutputParserException:
        assert isinstance(output["parsing_error"], REFUSED)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_a_refusal_is_langchains_error(make_worker: Callable[[str], Any], method: Any) -> None:
    chat = conductor(make_worker("refusing")).with_structured_output(Place, method=method)
    if method == "function_calling" and REFUSED is OutputParserException:
        assert chat.invoke(QUESTION) is None
    else:
        with pytest.raises(REFUSED, match=REFUSAL):
            chat.invoke(QUESTION)


async def output_of(chat: Any, way: str) -> Any:
    """The only output of a chat model that is asked in one of LangChain's ways."""
    match way:
        case "invoke":
            return chat.invoke(QUESTION)
        case "batch":
            [output] = chat.batch([QUESTION])
        case "stream":
            [output] = chat.stream(QUESTION)
        case "astream":
            [output] = [each async for each in chat.astream(QUESTION)]
        case _:
            return await chat.ainvoke(QUESTION)
    return output


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch", "stream", "astream"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_an_answer_that_is_not_json_is_a_parsing_error_with_the_raw_message(method: Any, way: str) -> None:
    chat = conductor(ScriptedModel("I'd rather not.")).with_structured_output(Place, method=method, include_raw=True)
    output = await output_of(chat, way)
    raw = output["raw"]
    assert (raw.text, output["parsed"]) == ("I'd rather not.", None)
    assert isinstance(output["parsing_error"], OutputParserException)
    assert output["parsing_error"].llm_output == "I'd rather not."
    used = raw.response_metadata["conductor"]["usage"]
    assert raw.usage_metadata["total_tokens"] == used["input_tokens"] + used["output_tokens"] > 0


@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_the_raw_message_of_a_langchain_worker_is_what_it_wrote(vendor: Vendor, way: str) -> None:
    wordy = ChatOpenAI(model="wordy", base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0)
    output = await output_of(conductor(wordy).with_structured_output(Place, include_raw=True), way)
    assert (output["raw"].text, output["parsed"]) == ("I'd rather not.", None)
    assert "not" in str(output["parsing_error"])
    assert output["raw"].usage_metadata["output_tokens"] >= COUNTS.output


@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_an_agent_whose_last_step_calls_no_tool_gets_no_draft_in_its_place(way: str) -> None:
    workers = {"drafter": ScriptedModel("A draft."), "writer": ScriptedModel("I'd rather not.")}
    two_steps = ScriptedModel([plan((0, "Draft.", []), (1, "Answer.", ["all"]))] * 2)
    chat = ChatConductor(workers, planner=two_steps, max_retries=0)
    with pytest.raises(RunError, match="no call of a tool"):
        await output_of(chat.with_structured_output(Place, method="function_calling"), way)
    with pytest.raises(RunError, match="no call of a tool"):
        await create_agent(chat, response_format=ToolStrategy(Place)).ainvoke({"messages": [HumanMessage(QUESTION)]})


def test_a_dict_that_violates_a_strict_schema_is_a_parsing_error() -> None:
    chat = conductor(ScriptedModel('{"town": "Ulm"}')).with_structured_output(CLOSED, include_raw=True)
    output: Any = chat.invoke(QUESTION)
    assert (output["raw"].text, output["parsed"]) == ('{"town": "Ulm"}', None)
    assert "does not match the JSON schema" in str(output["parsing_error"])


def test_a_raw_message_that_no_guardrail_has_checked_is_withheld() -> None:
    chat = conductor(ScriptedModel(f"Call {PHONE}."), guardrails=[Hide()])
    output: Any = chat.with_structured_output(Place, include_raw=True).invoke(QUESTION)
    assert (output["raw"].text, output["parsed"]) == (WITHHELD, None)
    assert PHONE not in str(output)


def test_other_failures_are_errors_even_with_the_raw_message() -> None:
    chat = conductor(ScriptedModel(down)).with_structured_output(Place, include_raw=True)
    with pytest.raises(RunError, match="out of order"):
        chat.invoke(QUESTION)


def test_a_refusal_without_a_text_is_not_taken_for_broken_json() -> None:
    refusal = AIMessage("", response_metadata={"stop_reason": "refusal"})
    assert json_reply(refusal, JsonFormat(), model="m", price=None) is refusal


def test_the_response_format_may_be_a_pydantic_class(worker: Any, vendor: Vendor) -> None:
    reply = conductor(worker).invoke(QUESTION, response_format=Place)
    assert Place.model_validate_json(str(reply.content)) == Place(city="Ulm")
    assert schema_of(vendor)["name"] == "Place"


# ------------------------------------------------------------------------------------------ JSON mode


def test_json_mode_sends_the_vendors_option(vendor: Vendor) -> None:
    joke = conductor(openai_chat(vendor)).with_structured_output({}, method="json_mode").invoke(QUESTION)
    assert vendor.last.body["response_format"] == {"type": "json_object"}
    assert joke == {"setup": "Why?", "punchline": "Meow."}


def test_models_without_such_an_option_get_the_conversation_only(other_vendor: AnthropicVendor) -> None:
    chat = ChatAnthropic(model="claude-haiku-4-5", base_url=other_vendor.url, api_key=SECRET, max_retries=0)
    with pytest.raises(RunError, match="the reply is not the requested JSON"):  # this vendor answers in words
        conductor(chat).with_structured_output({}, method="json_mode").invoke(QUESTION)
    assert "output_config" not in other_vendor.last.body


# --------------------------------------------------------------------------------------------- Claude


@pytest.mark.parametrize(
    "options",
    [
        {"model": "claude-sonnet-5-5"},
        {"model": "claude-haiku-4-5", "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 3000},
    ],
    ids=["unforceable", "thinking"],
)
def test_claude_models_that_cannot_be_forced_to_call_a_tool_enforce_the_schema(
    other_vendor: AnthropicVendor, options: dict[str, Any]
) -> None:
    chat = ChatAnthropic(**options, base_url=other_vendor.url, api_key=SECRET, max_retries=0)
    assert conductor(chat).with_structured_output(Place).invoke(QUESTION) == Place(city="Ulm")
    assert other_vendor.last.body["output_config"]["format"]["schema"]["required"] == ["city"]
    assert "tools" not in other_vendor.last.body
    agent: Any = create_agent(conductor(chat), [Place], response_format=ProviderStrategy(Place))
    assert agent.invoke({"messages": QUESTION})["structured_response"] == Place(city="Ulm")
    assert other_vendor.last.body["output_config"]["format"]["schema"]["required"] == ["city"]
    assert [tool["name"] for tool in other_vendor.last.body["tools"]] == ["Place"]
    assert "tool_choice" not in other_vendor.last.body


def test_a_schema_that_anthropics_library_cannot_convert_becomes_a_tool(other_vendor: AnthropicVendor) -> None:
    chat = ChatAnthropic(model="claude-haiku-4-5", base_url=other_vendor.url, api_key=SECRET, max_retries=0)
    schema = {**CLOSED, "properties": {"city": {"type": "string"}, "zip": {"description": "Digits"}}}
    answer = conductor(chat).with_structured_output(schema).invoke(QUESTION)
    assert isinstance(answer, dict)
    assert answer["city"] == "Ulm"
    assert other_vendor.last.body["tool_choice"]["type"] == "tool"


# --------------------------------------------------------------------------------------------- strict


@pytest.mark.parametrize("strict", [True, False])
def test_strict_reaches_the_schema(vendor: Vendor, worker: Any, strict: bool) -> None:
    conductor(worker).with_structured_output(Place, strict=strict).invoke(QUESTION)
    sent = schema_of(vendor)
    assert sent["strict"] is strict
    assert (sent["schema"].get("additionalProperties") is False) is strict


@pytest.mark.parametrize("strict", [True, False])
def test_strict_reaches_the_tools(vendor: Vendor, worker: Any, strict: bool) -> None:
    chat = conductor(worker)
    chat.bind_tools([Place], strict=strict).invoke(QUESTION)
    assert vendor.last.body["tools"][0]["function"]["strict"] is strict
    chat.with_structured_output(Place, method="function_calling", strict=strict).invoke(QUESTION)
    assert vendor.last.body["tools"][0]["function"]["strict"] is strict


def test_strict_reaches_the_tools_of_anthropic(other_vendor: AnthropicVendor) -> None:
    chat = ChatAnthropic(model="claude-haiku-4-5", base_url=other_vendor.url, api_key=SECRET, max_retries=0)
    core = model("anthropic:claude-haiku-4-5", base_url=other_vendor.url, api_key=SECRET)
    for worker in (chat, core):
        conductor(worker).bind_tools([Place], strict=True).invoke(QUESTION)
        assert other_vendor.last.body["tools"][0]["strict"] is True
    run_sync(core.aclose())


def test_a_structured_answer_is_a_single_tool_call(vendor: Vendor, worker: Any) -> None:
    conductor(worker).with_structured_output(Place, method="function_calling").invoke(QUESTION)
    assert vendor.last.body["parallel_tool_calls"] is False


def test_without_strict_the_vendors_default_holds(vendor: Vendor) -> None:
    conductor(openai_chat(vendor)).bind_tools([Place]).invoke(QUESTION)
    assert "strict" not in vendor.last.body["tools"][0]["function"]


def test_a_closed_schema_is_strict_unless_the_call_says_otherwise(vendor: Vendor) -> None:
    conductor(openai_chat(vendor)).with_structured_output(CLOSED).invoke(QUESTION)
    assert schema_of(vendor)["strict"] is True


def test_a_pydantic_class_is_enforced_by_the_vendor_as_with_the_hosts_own_client(vendor: Vendor, worker: Any) -> None:
    conductor(worker).with_structured_output(Place).invoke(QUESTION)
    sent = schema_of(vendor)
    openai_chat(vendor).with_structured_output(Place).invoke(QUESTION)
    own = schema_of(vendor)
    assert sent["strict"] is own["strict"] is True
    assert sent["schema"]["required"] == own["schema"]["required"]
    assert sent["schema"]["additionalProperties"] is own["schema"]["additionalProperties"] is False


def test_the_schema_of_plans_is_strict(vendor: Vendor) -> None:
    ChatConductor({"a": openai_chat(vendor), "b": ScriptedModel("Hi.")}).invoke("hi")
    sent = vendor.requests[0].body["response_format"]["json_schema"]
    assert sent["strict"] is True
    assert "steps" in sent["schema"]["properties"]


# ------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("schema", [PlaceDict, CLOSED], ids=["TypedDict", "JSON schema"])
def test_dicts_are_streamed_in_parts_as_from_the_worker_itself(vendor: Vendor, schema: Any) -> None:
    chat = openai_chat(vendor)
    own = list(chat.with_structured_output(schema).stream(QUESTION))
    parts = list(conductor(chat).with_structured_output(schema).stream(QUESTION))
    assert len(parts) > 1
    assert parts == own
    assert parts[-1] == {"city": "Ulm"}


async def test_dicts_are_streamed_in_parts_to_async_code(vendor: Vendor) -> None:
    async with openai.DefaultAsyncHttpxClient() as client:
        structured = conductor(openai_chat(vendor, http_async_client=client)).with_structured_output(PlaceDict)
        parts = [part async for part in structured.astream(QUESTION)]
    assert len(parts) > 1
    assert parts[-1] == {"city": "Ulm"}


@pytest.mark.parametrize("name", ["claude-haiku-4-5", "claude"])
def test_dicts_in_a_text_and_in_a_tool_call_are_streamed_in_parts(other_vendor: AnthropicVendor, name: str) -> None:
    chat = ChatAnthropic(model=name, base_url=other_vendor.url, api_key=SECRET, max_retries=0)
    parts = list(conductor(chat).with_structured_output(PlaceDict).stream(QUESTION))
    assert len(parts) > 1
    assert parts[-1] == {"city": "Ulm"}
    assert conductor(chat).with_structured_output(Place).invoke(QUESTION) == Place(city="Ulm")


def test_bound_options_reach_calls_with_a_schema(vendor: Vendor) -> None:
    conductor(openai_chat(vendor).bind(user="me")).with_structured_output(Place).invoke(QUESTION)
    assert vendor.last.body["user"] == "me"


# --------------------------------------------------------------- services that ignore the JSON option


def test_a_plan_after_other_words_is_read_as_from_the_core_adapter(make_worker: Callable[[str], Any]) -> None:
    workers = {"a": ScriptedModel("A draft."), "b": ScriptedModel("An answer.")}
    chat = ChatConductor(workers, planner=make_worker("chatty"))
    reply = chat.invoke("hi")
    planned = reply.response_metadata["conductor"]["rounds"][0]["plan"]
    assert (reply.text, planned["source"], planned["errors"]) == ("An answer.", "planner", [])


def test_a_reply_that_is_not_the_requested_json_is_paid(vendor: Vendor) -> None:
    wordy = ChatOpenAI(model="wordy", base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0)
    with pytest.raises(RunError) as failed:
        conductor(wordy).with_structured_output(CLOSED).invoke(QUESTION)
    calls = [call for call in failed.value.trace.calls if call.worker == "writer"]
    assert [call.usage.total_tokens for call in calls] == [COUNTS.input + COUNTS.output] * len(calls)


# ------------------------------------------------------------------------------------- OpenAI's form

OPENAI_FORM = {"name": "place", "strict": True, "schema": {key: CLOSED[key] for key in CLOSED if key != "title"}}


@pytest.mark.parametrize(
    "form", [OPENAI_FORM, {"type": "json_schema", "json_schema": OPENAI_FORM}], ids=["inner", "whole"]
)
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_schema_may_be_openais_response_format(worker: Any, vendor: Vendor, form: Any, method: Any) -> None:
    chat = conductor(worker).with_structured_output(form, method=method)
    assert chat.invoke(QUESTION) == {"city": "Ulm"}
    if method == "json_schema":
        sent, properties = schema_of(vendor), schema_of(vendor)["schema"]["properties"]
    else:
        sent = vendor.last.body["tools"][0]["function"]
        properties = sent["parameters"]["properties"]
    assert (sent["name"], sent["strict"], properties) == ("place", True, CLOSED["properties"])


def test_strict_beside_openais_response_format_takes_precedence(worker: Any, vendor: Vendor) -> None:
    conductor(worker).with_structured_output(OPENAI_FORM, strict=False).invoke(QUESTION)
    assert schema_of(vendor)["strict"] is False
