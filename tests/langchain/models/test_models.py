"""LangChain's models and runnables fulfil the core's contract and keep their own settings."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncIterator, Iterator
from operator import itemgetter
from typing import Any, TypedDict

import openai
import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core import exceptions as lc_errors
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel, FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.messages import ToolCall as LCToolCall
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, Field

from core.models.wire.base import SECRET
from core.runs import plan
from langchain_conductor import ChatConductor, ChatModel, RunnableModel
from langchain_conductor.models.errors import ERROR_TYPES
from langchain_vendor import COUNTS, REFUSAL, ResponsesVendor, Vendor
from rl_conductor import ConfigError, Message, Request, Sampling, ScriptedModel, Tool
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    OverloadedError,
    RateLimitError,
    UnreachableError,
)
from rl_conductor.models import Model
from rl_conductor.types import Completion, JsonFormat, ToolCall

HELLO = Request.user("Hello")
NOW = Tool(name="now", description="The time.")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="module")
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


@pytest.fixture
async def chat(vendor: Vendor) -> AsyncIterator[Any]:
    """Makes chat models of the vendor that share a client of this test's own."""
    vendor.requests.clear()
    options = {"base_url": f"{vendor.url}/v1", "api_key": SECRET, "max_retries": 0}
    async with openai.DefaultAsyncHttpxClient() as client:
        yield lambda model="gpt-4o-mini", **more: ChatOpenAI(model=model, http_async_client=client, **options, **more)


async def collected(model: Model, request: Request) -> tuple[list[str], Completion]:
    deltas = [delta async for delta in model.stream(request)]
    assert deltas[-1].completion is not None
    return [delta.text for delta in deltas if delta.text], deltas[-1].completion


def hello(*replies: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(replies or ["Hello."]))


# -------------------------------------------------------------------------------------- chat models


async def test_a_chat_model_answers_with_its_usage_and_price(chat: Any) -> None:
    model = ChatModel(chat())
    completion = await model.complete(HELLO)
    assert (model.name, completion.text, completion.model) == (
        "openai:gpt-4o-mini",
        "Hello to you.",
        "gpt-4o-mini-2026",
    )
    usage = completion.usage
    assert (usage.input_tokens, usage.cached_tokens) == (COUNTS.input, COUNTS.cached)
    assert (usage.output_tokens, usage.reasoning_tokens) == (COUNTS.output, COUNTS.reasoning)
    assert usage.cost > 0
    assert usage.unpriced_calls == 0


async def test_a_chat_model_streams_its_own_tokens(chat: Any) -> None:
    pieces, completion = await collected(ChatModel(chat(stream_usage=True)), HELLO)
    assert pieces == ["Hello", " to", " you", "."]
    assert completion.text == "".join(pieces)
    assert completion.usage.output_tokens == COUNTS.output


@pytest.mark.parametrize(
    ("choice", "sent"), [("auto", None), ("required", "required"), ("none", "none"), ("now", {"name": "now"})]
)
async def test_tools_and_the_choice_among_them_reach_the_vendor(
    chat: Any, vendor: Vendor, choice: str, sent: Any
) -> None:
    request = HELLO.model_copy(update={"tools": (NOW,), "tool_choice": choice, "parallel_tool_calls": False})
    completion = await ChatModel(chat()).complete(request)
    assert [call.name for call in completion.message.tool_calls] == ([] if choice == "none" else ["now"])
    body = vendor.last.body
    assert body["tools"][0]["function"]["name"] == "now"
    assert body["parallel_tool_calls"] is False
    sent_choice = body.get("tool_choice")
    assert (sent_choice.get("function") if isinstance(sent_choice, dict) else sent_choice) == sent


async def test_models_without_an_option_for_it_are_not_asked_for_a_single_call() -> None:
    model = ModelCaller(responses=[calls("now")])
    request = HELLO.model_copy(update={"tools": (NOW,), "parallel_tool_calls": False})
    assert (await ChatModel(model).complete(request)).finish_reason == "tool_calls"
    assert model.bound == [(["now"], {})]


@pytest.fixture
def responses_chat() -> Iterator[Any]:
    """Makes chat models of OpenAI's Responses API."""
    with ResponsesVendor.running() as vendor:
        options: Any = {"base_url": f"{vendor.url}/v1", "api_key": SECRET, "max_retries": 0}
        yield lambda model: ChatOpenAI(model=model, use_responses_api=True, **options)


@pytest.mark.parametrize(("model", "finish"), [("truncating", "length"), ("filtering", "content_filter")])
async def test_an_incomplete_reply_of_the_responses_api_says_why_it_ended(
    responses_chat: Any, model: str, finish: str
) -> None:
    chat_model = ChatModel(responses_chat(model))
    assert (await chat_model.complete(HELLO)).finish_reason == finish
    _, completion = await collected(chat_model, HELLO)
    assert completion.finish_reason == finish


def test_a_planner_of_the_responses_api_that_only_reasoned_gets_more_tokens(responses_chat: Any) -> None:
    workers = {name: {"model": ScriptedModel(name), "description": name} for name in ("drafts", "answers")}
    answer = ChatConductor(workers, planner=responses_chat("reasoning")).invoke("Hello")
    round_summary = answer.response_metadata["conductor"]["rounds"][0]
    assert [step["worker"] for step in round_summary["steps"]] == ["drafts", "answers"]


async def test_a_tool_call_is_streamed_whole(chat: Any) -> None:
    pieces, completion = await collected(ChatModel(chat()), HELLO.model_copy(update={"tools": (NOW,)}))
    assert pieces == []
    assert completion.finish_reason == "tool_calls"
    assert completion.message.tool_calls[0].name == "now"


@pytest.mark.parametrize(("schema", "text"), [(SCHEMA, '{"city": "something"}'), (None, '{"setup": "Why?"}')])
async def test_json_is_the_text_of_the_reply(chat: Any, schema: Any, text: str) -> None:
    request = HELLO.model_copy(update={"response_format": JsonFormat(name="place", json_schema=schema)})
    fake = ChatModel(hello('```json\n{"setup": "Why?"}\n```')) if schema is None else ChatModel(chat())
    model = fake if schema else ChatModel(fake.chat, capabilities=ChatModel(chat()).capabilities)
    assert (await model.complete(request)).text == text
    pieces, completion = await collected(model, request)
    assert "".join(pieces) == text
    assert completion == await model.complete(request)


async def test_streamed_json_counts_tokens_of_a_server_that_repeats_the_role_in_each_chunk(chat: Any) -> None:
    request = HELLO.model_copy(update={"response_format": JsonFormat(name="place", json_schema=SCHEMA)})
    _, completion = await collected(ChatModel(chat("repeating")), request)
    usage = completion.usage
    assert (usage.input_tokens, usage.cached_tokens) == (COUNTS.input, COUNTS.cached)
    assert (usage.output_tokens, usage.reasoning_tokens) == (COUNTS.output, COUNTS.reasoning)


@pytest.mark.parametrize(("schema", "reply_text"), [(None, "no JSON"), (SCHEMA, "no JSON")])
async def test_a_reply_without_the_requested_json_is_retryable(schema: Any, reply_text: str, chat: Any) -> None:
    model = ChatModel(hello(reply_text), capabilities=ChatModel(chat()).capabilities)
    with pytest.raises(ModelError) as caught:
        await model.complete(HELLO.model_copy(update={"response_format": JsonFormat(json_schema=schema)}))
    if schema is None:
        assert isinstance(caught.value, BadResponseError)
        assert caught.value.retryable


class ModelCaller(FakeMessagesListChatModel):
    """A chat model that records the tools bound to it."""

    bound: list[Any] = Field(default_factory=list)

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Itself."""
        self.bound.append(([tool["function"]["name"] for tool in tools], options))
        return self


def calls(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[LCToolCall(name=name, args=arguments, id="c")])


TOOLS_OR_FORM = HELLO.model_copy(
    update={"tools": (NOW,), "response_format": JsonFormat(name="place", json_schema=SCHEMA)}
)


async def test_with_tools_and_a_schema_a_chat_model_calls_a_tool_or_answers_in_json() -> None:
    replies = [calls("now"), calls("answer_place", city="Ulm"), AIMessage('{"city": "Bonn"}')]
    chat = ModelCaller(responses=list(replies))
    model = ChatModel(chat)
    first, second, third = [await model.complete(TOOLS_OR_FORM) for _ in replies]
    assert chat.bound == [(["now", "answer_place"], {"tool_choice": "any"})] * 3
    assert [call.name for call in first.message.tool_calls] == ["now"]
    assert [(reply.text, reply.message.tool_calls) for reply in (second, third)] == [
        ('{"city": "Ulm"}', ()),
        ('{"city": "Bonn"}', ()),
    ]


async def test_a_tool_that_is_called_beside_the_answer_goes_before_it() -> None:
    both = calls("answer_place", city="Ulm").tool_calls + calls("now").tool_calls
    reply = await ChatModel(ModelCaller(responses=[AIMessage("", tool_calls=both)])).complete(TOOLS_OR_FORM)
    assert [call.name for call in reply.message.tool_calls] == ["now"]


async def test_a_form_of_any_title_is_offered_under_a_name_that_vendors_take(chat: Any, vendor: Vendor) -> None:
    form = JsonFormat(name="My Place[int]" + "x" * 70, json_schema={"title": "My Place[int]", **SCHEMA})
    request = TOOLS_OR_FORM.model_copy(update={"response_format": form})
    caller = ModelCaller(responses=[calls("now")])
    await ChatModel(caller).complete(request)
    ((_, offered), _) = caller.bound[0]
    await ChatModel(chat()).complete(request.model_copy(update={"tools": ()}))
    sent = vendor.last.body["response_format"]["json_schema"]["name"]
    assert (offered, sent) == ("answer_My_Place_int_" + "x" * 44, "My_Place_int_" + "x" * 51)


@pytest.mark.parametrize(("choice", "bound"), [("now", "now"), ("required", "any")])
async def test_a_tool_that_must_be_called_is_offered_without_the_form(choice: str, bound: str) -> None:
    chat = ModelCaller(responses=[calls("now")])
    await ChatModel(chat).complete(TOOLS_OR_FORM.model_copy(update={"tool_choice": choice}))
    assert chat.bound == [(["now"], {"tool_choice": bound})]


def test_an_agent_over_chat_models_may_have_tools_and_a_form_for_its_answer() -> None:
    class Place(BaseModel):
        city: str

    chat = ModelCaller(responses=[calls("where"), calls("answer_Place", city="Ulm")])
    conductor: Any = ChatConductor(workers={"a": chat}, planner=ScriptedModel(plan((0, "Answer.", []))))
    agent: Any = create_agent(
        conductor,
        tools=[StructuredTool.from_function(lambda: "Ulm", name="where", description="Where?")],
        response_format=Place,
    )
    assert agent.invoke({"messages": "Where are you?"})["structured_response"] == Place(city="Ulm")


async def test_sampling_of_the_request_overrides_the_models_settings(chat: Any, vendor: Vendor) -> None:
    model = ChatModel(chat(temperature=0.9, seed=7))
    await model.complete(HELLO)
    assert (vendor.last.body["temperature"], vendor.last.body["seed"]) == (0.9, 7)
    sampling = Sampling(temperature=0.1, top_p=0.5, max_tokens=9, stop=("X",))
    await model.complete(HELLO.model_copy(update={"sampling": sampling}))
    body = vendor.last.body
    assert (body["temperature"], body["top_p"], body["seed"], body["stop"]) == (0.1, 0.5, 7, ["X"])
    assert body["max_completion_tokens"] == 9


async def test_a_refusal_is_the_text_of_the_reply_and_marked_as_one(chat: Any) -> None:
    completion = await ChatModel(chat("refusing")).complete(HELLO)
    assert (completion.text, completion.finish_reason, completion.is_refusal) == (REFUSAL, "content_filter", True)


async def test_settings_that_a_chat_model_does_not_have_are_left_out() -> None:
    request = HELLO.model_copy(update={"sampling": Sampling(temperature=0.1, seed=1)})
    assert (await ChatModel(hello()).complete(request)).text == "Hello."


@pytest.mark.parametrize(
    ("scenario", "kind", "retryable"),
    [
        ("unauthorized", AuthenticationError, False),
        ("forbidden", AuthenticationError, False),
        ("rate-limit", RateLimitError, True),
        ("context", ContextLengthError, False),
        ("bad-request", BadRequestError, False),
        ("missing", BadRequestError, False),
        ("server-error", ModelError, True),
        ("overloaded", OverloadedError, True),
    ],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_vendors_error_becomes_ours(
    chat: Any, scenario: str, kind: type[ModelError], retryable: bool, streamed: bool
) -> None:
    model = ChatModel(chat(scenario))
    with pytest.raises(kind) as caught:
        await (collected(model, HELLO) if streamed else model.complete(HELLO))
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert caught.value.retry_after == (7 if scenario == "rate-limit" else None)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("is_agent", [False, True], ids=["chat model", "agent"])
@pytest.mark.parametrize(("own_retries", "retries", "requests"), [(1, 5, 2), (0, 1, 2)])
def test_only_the_chat_model_retries_a_vendors_error_if_it_does_and_then_another_worker_answers(
    vendor: Vendor, own_retries: int, retries: int, requests: int, is_agent: bool
) -> None:
    url = f"{vendor.url}/v1"
    broken: Any = ChatOpenAI(model="server-error", base_url=url, api_key=SECRET, max_retries=own_retries)
    workers = {"broken": create_agent(broken) if is_agent else broken, "other": ScriptedModel("An answer.")}
    planner = ScriptedModel(plan((0, "Answer.", [])))
    vendor.requests.clear()
    assert ChatConductor(workers, planner=planner, max_retries=retries).invoke("Why?").text == "An answer."
    assert len(vendor.requests) == requests


def test_a_vendors_error_after_the_chat_models_own_retries_may_still_be_retried_by_the_caller(vendor: Vendor) -> None:
    broken = ChatOpenAI(model="server-error", base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=1)
    with pytest.raises(lc_errors.ModelAPIError) as caught:
        ChatConductor({"broken": broken}, planner=ScriptedModel(plan((0, "Answer.", [])))).invoke("Why?")
    assert caught.value.is_retryable


@pytest.mark.parametrize("scenario", ["unauthorized", "masked-key", "torn-key"])
async def test_the_api_key_of_a_model_inside_an_agent_or_a_chain_is_redacted(chat: Any, scenario: str) -> None:
    for runnable in (create_agent(chat(scenario)), RunnableLambda(lambda text: text) | chat(scenario)):
        with pytest.raises(ModelError, match="secret") as caught:
            await RunnableModel(runnable).complete(HELLO)
        error_text = "".join(traceback.format_exception(caught.value))
        assert not [SECRET[at : at + 8] for at in range(len(SECRET) - 7) if SECRET[at : at + 8] in error_text]


async def test_a_vendor_that_can_not_be_reached_is_paid_nothing() -> None:
    dead = ChatOpenAI(model="gpt-4o", base_url="http://127.0.0.1:9/v1", api_key=SECRET, max_retries=0)
    with pytest.raises(UnreachableError, match="openai:gpt-4o: can't reach its server"):
        await ChatModel(dead).complete(HELLO)
    workers: dict[str, Any] = {"dead": dead, "other": ScriptedModel("An answer.")}
    reply = await ChatConductor(workers, planner=ScriptedModel(plan((0, "Answer.", [])))).ainvoke("Why?")
    assert reply.text == "An answer."
    assert reply.response_metadata["conductor"]["usage"]["unpriced_calls"] == 0


async def test_a_chat_model_that_never_answers_times_out(chat: Any) -> None:
    for answer in (ChatModel(chat("hang")).complete, lambda request: collected(ChatModel(chat("hang")), request)):
        with pytest.raises(ModelTimeoutError):
            await answer(HELLO.model_copy(update={"timeout": 0.2}))


async def test_unknown_exceptions_become_model_errors() -> None:
    def broken(_: Any) -> str:
        raise ZeroDivisionError("oh")

    with pytest.raises(ModelError, match="ZeroDivisionError: oh"):
        await RunnableModel(RunnableLambda(broken)).complete(HELLO)


@pytest.mark.parametrize(("theirs", "ours"), ERROR_TYPES.items(), ids=lambda kind: kind.__name__)
async def test_errors_without_a_status_are_translated_by_type(theirs: Any, ours: type[ModelError]) -> None:
    def broken(_: Any) -> str:
        raise theirs(*(("no", "{", 0) if theirs is json.JSONDecodeError else ("no",)))

    with pytest.raises(ours, match="no") as caught:
        await RunnableModel(RunnableLambda(broken)).complete(HELLO)
    assert caught.value.retryable is ours.retryable_by_default


@pytest.mark.parametrize("form", [None, JsonFormat(name="place", json_schema=SCHEMA)], ids=["text", "json"])
async def test_the_error_about_a_server_that_does_not_stream_says_what_to_write(chat: Any, form: Any) -> None:
    request = HELLO.model_copy(update={"response_format": form})
    with pytest.raises(BadResponseError, match=r"reply of openai:whole was not streamed.*disable_streaming=True$"):
        await collected(ChatModel(chat("whole")), request)
    _, completion = await collected(ChatModel(chat("whole", disable_streaming=True)), request)
    assert completion.text == (await ChatModel(chat("whole")).complete(request)).text != ""


async def test_an_empty_reply_is_an_error() -> None:
    with pytest.raises(BadResponseError, match="the reply is empty"):
        await ChatModel(hello("")).complete(HELLO)


async def test_a_chat_models_own_cache_saves_the_second_call(chat: Any, vendor: Vendor) -> None:
    model = ChatModel(chat(cache=InMemoryCache()))
    first, second = await model.complete(HELLO), await model.complete(HELLO)
    assert first.text == second.text
    assert len(vendor.requests) == 1
    assert (await model.complete(HELLO.model_copy(update={"sampling": Sampling(temperature=1)}))).text == first.text
    assert len(vendor.requests) == 2


async def test_a_chat_models_own_rate_limiter_and_callbacks_stay_in_force(chat: Any) -> None:
    class Heard(BaseCallbackHandler):
        calls = 0

        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            Heard.calls += 1

    limiter = InMemoryRateLimiter(requests_per_second=1000, max_bucket_size=10)
    limiter.available_tokens = 10
    await ChatModel(chat(callbacks=[Heard()], rate_limiter=limiter)).complete(HELLO)
    assert Heard.calls == 1
    assert limiter.available_tokens < 10


def test_capabilities_come_from_the_profile(chat: Any) -> None:
    capabilities = ChatModel(
        chat(profile={"image_inputs": False, "pdf_inputs": True, "tool_calling": True})
    ).capabilities
    assert capabilities.names == {"tools", "files", "json_schema"}
    assert ChatModel(hello()).capabilities.names == {"images"}


# ---------------------------------------------------------------------------------- other runnables


class State(TypedDict):
    question: str
    topic: str


def graph() -> Runnable[Any, Any]:
    async def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await hello("From a graph.").ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def agent() -> Runnable[Any, Any]:
    call: Any = {"name": "weather", "args": {"city": "Kyiv"}, "id": "c1"}
    used: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    metadata = {"model_name": "fake"}
    turns = [
        AIMessage("", tool_calls=[call], usage_metadata=used, response_metadata=metadata),
        AIMessage("It is sunny.", usage_metadata=used, response_metadata=metadata),
    ]

    class Calling(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    return create_agent(Calling(messages=iter(turns)), [weather])


TOLD = ChatPromptTemplate.from_template("Say {what}") | hello("Said.") | StrOutputParser()

ANSWERS: list[tuple[Any, str]] = [
    (RunnableLambda(lambda turns: f"{len(turns)} turn"), "1 turn"),
    (RunnableLambda(lambda turns: HumanMessage(turns[0].text)), "Hello"),
    (RunnableLambda(lambda _: {"found": [1, 2]}), '{"found":[1,2]}'),
    (TOLD, "Said."),
    (hello("Hi.") | StrOutputParser(), "Hi."),
    (graph(), "From a graph."),
]


@pytest.mark.parametrize(("runnable", "text"), ANSWERS, ids=lambda value: value if isinstance(value, str) else "")
async def test_every_kind_of_runnable_can_be_a_worker(runnable: Any, text: str) -> None:
    model = RunnableModel(runnable)
    assert (await model.complete(HELLO)).text == text
    pieces, completion = await collected(model, HELLO)
    assert "".join(pieces) == completion.text == text


class City(BaseModel):
    name: str
    people: int


async def test_an_agent_with_a_response_format_replies_with_its_structured_response() -> None:
    call: Any = {"name": "City", "args": {"name": "Kyiv", "people": 3_000_000}, "id": "c1"}

    class Calling(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    model = Calling(messages=iter([AIMessage("", tool_calls=[call])]))
    worker = RunnableModel(create_agent(model, [weather], response_format=ToolStrategy(City)))
    assert (await worker.complete(HELLO)).text == '{"name":"Kyiv","people":3000000}'


async def test_text_goes_to_what_takes_text() -> None:
    def shout(question: str) -> str:
        return question.upper()

    assert (await RunnableModel(RunnableLambda(shout)).complete(HELLO)).text == "HELLO"


async def test_a_runnable_may_have_nothing_to_add_to_the_results_of_tools() -> None:
    calls = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    told = HELLO.model_copy(update={"messages": (*HELLO.messages, calls, Message.tool("1", "done"))})
    silent = RunnableModel(RunnableLambda(lambda _: ""))
    assert (await silent.complete(told)).text == ""
    with pytest.raises(BadResponseError, match="the reply is empty"):
        await silent.complete(HELLO)


@pytest.mark.parametrize(
    ("output", "named"), [(None, "nothing"), (object(), "an object of the type object")], ids=["nothing", "object"]
)
async def test_a_runnable_that_returns_neither_text_nor_data_fails_its_step(output: object, named: str) -> None:
    with pytest.raises(ModelError, match=f"returned {named}; return a text, or data"):
        await RunnableModel(RunnableLambda(lambda _: output)).complete(HELLO)


async def test_text_goes_to_steps_side_by_side_that_do_not_type_their_input() -> None:
    questions: list[str] = []
    steps = {"context": RunnableLambda(questions.append), "question": RunnablePassthrough()}
    chain = steps | ChatPromptTemplate.from_template("{context}: {question}") | hello("Hi.")
    assert (await RunnableModel(chain).complete(HELLO)).text == "Hi."
    assert questions == ["Hello"]


async def test_a_chain_streams_as_it_is_made() -> None:
    pieces, _ = await collected(RunnableModel(TOLD), HELLO)
    assert pieces == list("Said.")


@pytest.mark.parametrize("reply", ["[1, 2, 3]", '{"first": "one two", "second": "three"}'])
async def test_a_chain_that_streams_growing_values_answers_with_the_last(reply: str) -> None:
    _, completion = await collected(RunnableModel(hello(reply) | JsonOutputParser()), HELLO)
    assert json.loads(completion.text) == json.loads(reply)


async def test_a_chain_that_streams_parts_of_a_dict_answers_with_the_whole() -> None:
    worker = RunnableParallel(first=hello("one two") | StrOutputParser(), second=hello("three") | StrOutputParser())
    _, completion = await collected(RunnableModel(worker), HELLO)
    assert json.loads(completion.text) == {"first": "one two", "second": "three"}


async def test_an_agent_uses_its_own_tools_and_all_its_calls_are_counted() -> None:
    completion = await RunnableModel(agent()).complete(HELLO)
    assert completion.text == "It is sunny."
    assert (completion.usage.input_tokens, completion.usage.output_tokens) == (20, 10)


async def test_an_agent_whose_input_is_declared_as_a_dict_gets_the_conversation_as_its_messages() -> None:
    assert (await RunnableModel(agent().with_types(input_type=dict)).complete(HELLO)).text == "It is sunny."


async def test_a_conductor_inside_of_a_chain_is_counted_once() -> None:
    planner = ScriptedModel(plan((0, "Say hello.", [])))
    inside = ChatConductor(workers={"a": ScriptedModel("Hello there.")}, planner=planner)
    reply = await inside.ainvoke("Hello")
    assert reply.usage_metadata is not None
    completion = await RunnableModel(inside | StrOutputParser()).complete(HELLO)
    assert completion.usage.total_tokens == reply.usage_metadata["total_tokens"]


def test_a_runnable_that_takes_several_fields_is_refused_with_the_cure() -> None:
    with pytest.raises(
        ConfigError, match=r"takes several fields: question, topic; .*RunnableLambda\(lambda messages: \{'question'"
    ):
        RunnableModel(StateGraph(State).add_node("a", lambda _: {}).add_edge(START, "a").compile())


class Topic(TypedDict):
    """Its input."""

    question: str


class Drafting(TypedDict):
    """The state of a graph."""

    question: str
    answer: str


class Drafted(TypedDict):
    """Its output."""

    answer: str


async def test_a_graph_with_several_nodes_replies_to_a_stream_in_one_piece() -> None:
    builder = StateGraph(Drafting, input_schema=Topic, output_schema=Drafted)
    builder.add_node("draft", lambda _: {"answer": "A draft."})
    builder.add_node("correct", lambda state: {"answer": state["answer"].upper()})
    builder.add_edge(START, "draft").add_edge("draft", "correct")
    graph = builder.compile()
    workers: list[Runnable[Any, Any]] = [graph, graph | RunnableLambda(itemgetter("answer"))]
    for worker in workers:
        _, completion = await collected(RunnableModel(worker), HELLO)
        assert "A DRAFT." in completion.text
