"""`ChatConductor` is a chat model like any other to LangChain, and exposes the Conductor's plan, steps and usage."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core._api import LangChainBetaWarning
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
    trim_messages,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from core.capitals import capital_router
from core.runs import SOON, Paced, down, plan, prompt_of
from langchain_conductor import ChatConductor
from rl_conductor import (
    Capabilities,
    ConfigError,
    Limits,
    Message,
    ModelError,
    Policy,
    PolicyError,
    Request,
    RunError,
    Sampling,
    ScriptedModel,
    Worker,
    model,
)
from rl_conductor.trace.summary import Summary
from rl_conductor.types import Completion, JsonFormat, ToolCall, Usage

TWO = plan((0, "Draft it.", []), (1, "Finish it.", ["all"]))


def says(text: str, **usage: int) -> Completion:
    return Completion(message=Message.assistant(text), usage=Usage(calls=1, **usage), model="vendor-x")


def conducting(
    answer: Any = "The whole answer.", *, draft: Any = "A draft.", plans: Any = TWO, **options: Any
) -> ChatConductor:
    """Builds a conductor with the workers `drafter` and `writer`; the writer answers."""
    workers = {"drafter": ScriptedModel(draft, name="drafter"), "writer": ScriptedModel(answer, name="writer")}
    return ChatConductor(
        workers=options.pop("workers", workers), planner=ScriptedModel(plans, name="planner"), **options
    )


def scripted(chat: ChatConductor, name: str) -> ScriptedModel:
    """The scripted model of a worker, or of the planner."""
    assert chat.workers is not None
    source = chat.planner if name == "planner" else chat.workers[name]
    assert isinstance(source, ScriptedModel)
    return source


def last_request(chat: ChatConductor, name: str) -> Request:
    return scripted(chat, name).requests[-1]


def streamed(chunks: Any) -> AIMessageChunk:
    first, *others = chunks
    message = first + others
    assert isinstance(message, AIMessageChunk)
    return message


Answer = Callable[[Any, Any], AIMessage]


async def _astreamed(chat: Any, question: Any) -> AIMessage:
    return streamed([chunk async for chunk in chat.astream(question)])


WAYS: dict[str, Answer] = {
    "invoke": lambda chat, question: chat.invoke(question),
    "stream": lambda chat, question: streamed(chat.stream(question)),
    "ainvoke": lambda chat, question: asyncio.run(chat.ainvoke(question)),
    "astream": lambda chat, question: asyncio.run(_astreamed(chat, question)),
}


@pytest.fixture(params=WAYS)
def answer(request: pytest.FixtureRequest) -> Answer:
    """Each way to ask."""
    return WAYS[request.param]


# ------------------------------------------------------------------------------------------ answers


def test_the_answer_comes_with_everything_that_it_used(answer: Answer) -> None:
    usage = {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "reasoning_tokens": 2}
    chat = conducting([says("Done.", **usage)], draft=[says("A draft.", **usage)], plans=[says(TWO, **usage)])
    reply = answer(chat, "Write.")
    assert reply.text == "Done."
    assert reply.usage_metadata == {
        "input_tokens": 30,
        "output_tokens": 15,
        "total_tokens": 45,
        "input_token_details": {"cache_read": 12},
        "output_token_details": {"reasoning": 6},
    }
    metadata = reply.response_metadata
    assert (metadata["model_name"], metadata["finish_reason"]) == ("conductor", "stop")
    brief = Summary.model_validate(metadata["conductor"])
    assert brief.model == "vendor-x"
    assert [(step.worker, step.access, step.usage.total_tokens) for step in brief.rounds[0].steps] == [
        ("drafter", (), 15),
        ("writer", (0,), 15),
    ]
    assert brief.usage.total_tokens == 45


def test_only_the_last_chunk_carries_usage_and_facts() -> None:
    chunks = list(conducting().stream("Write."))
    assert [chunk.text for chunk in chunks] == ["The ", "whole ", "answer.", ""]
    assert [bool(chunk.usage_metadata) for chunk in chunks] == [False, False, False, True]
    assert [bool(chunk.response_metadata) for chunk in chunks] == [False, False, False, True]
    assert chunks[-1].chunk_position == "last"


async def test_tokens_arrive_while_the_answer_is_written() -> None:
    go = asyncio.Event()

    async def pause(text: str) -> None:
        if text == "one ":
            await go.wait()

    workers = {"drafter": ScriptedModel("A draft."), "writer": Paced("one two", pause)}
    async with asyncio.timeout(SOON), aclosing(conducting(workers=workers).astream("Write.")) as chunks:  # type: ignore[type-var]
        assert (await anext(chunks)).text == "one "
        go.set()
        assert "".join([chunk.text async for chunk in chunks]) == "two"


async def test_leaving_a_stream_stops_the_workers() -> None:
    async def pause(_: str) -> None:
        await asyncio.Event().wait()

    writer = Paced("one two", pause)
    async with aclosing(
        conducting(workers={"drafter": ScriptedModel("."), "writer": writer}).astream("Write.")
    ) as chunks:  # type: ignore[type-var]
        await anext(chunks)
        assert writer.in_flight == 1
    assert writer.in_flight == 0


def test_leaving_a_sync_stream_stops_the_workers() -> None:
    async def pause(_: str) -> None:
        await asyncio.Event().wait()

    writer = Paced("one two", pause)
    for _ in conducting(workers={"drafter": ScriptedModel("."), "writer": writer}).stream("Write."):
        assert writer.in_flight == 1
        break
    assert writer.in_flight == 0


def test_a_run_without_an_answer_says_why(answer: Answer) -> None:
    with pytest.raises(RunError, match="out of order") as caught:
        answer(conducting(down, draft=down, max_retries=0), "Write.")
    assert caught.value.trace.usage.calls == 5


def test_a_question_that_no_worker_can_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="a human message has a block of type 'audio'"):
        conducting().invoke([HumanMessage([{"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"}])])


async def test_batches_keep_their_order_and_their_failures() -> None:
    def echo(request: Request) -> Any:
        return down(request) if "bad" in prompt_of(request) else prompt_of(request)

    chat = ChatConductor(workers={"a": ScriptedModel(echo)}, policy=Policy(single="a"), max_retries=0)
    questions: list[Any] = [str(number) for number in range(20)]
    assert [reply.text for reply in chat.batch(questions)] == questions
    assert [reply.text for reply in await chat.abatch(questions, {"max_concurrency": 3})] == questions
    first, second, third = chat.batch(["x", "bad", "y"], return_exceptions=True)
    assert (first.text, third.text) == ("x", "y")
    assert isinstance(second, RunError)


async def test_code_that_can_not_await_works_inside_of_a_running_loop_too() -> None:
    """As in a notebook."""
    chat = conducting()
    assert chat.invoke("Write.").text == "".join(chunk.text for chunk in chat.stream("Write.")) == "The whole answer."


def test_it_stands_in_a_chain() -> None:
    chain = ChatPromptTemplate.from_template("Write of {what}.") | conducting() | StrOutputParser()
    assert chain.invoke({"what": "cats"}) == "The whole answer."
    assert list(chain.stream({"what": "cats"}))[:2] == ["The ", "whole "]


# ------------------------------------------------------------------------------------------ options


def test_settings_reach_the_worker_that_answers_and_no_other() -> None:
    chat = conducting(temperature=0.3, max_tokens=50, seed=1, stop=["X"], top_p=0.9, timeout=30)
    chat.invoke("Write.", temperature=0.7, seed=2, stop=["Y"], reasoning_effort="low")
    expected_sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=50, seed=2, stop=("Y",), effort="low")
    assert last_request(chat, "writer").sampling == expected_sampling
    assert last_request(chat, "drafter").sampling == Sampling(max_tokens=4096)


def test_a_profile_can_be_chosen_once_or_for_a_call() -> None:
    three = plan((0, "a", []), (0, "b", []), (1, "c", ["all"]))
    chat = conducting(plans=three)
    assert chat.invoke("Write.").response_metadata["model_name"] == "conductor"
    reply = chat.invoke("Write.", model="mini")
    assert reply.response_metadata["model_name"] == "conductor-mini"
    assert len(reply.response_metadata["conductor"]["rounds"][0]["steps"]) < 3
    assert conducting(model="mini").conductor.limits.steps == 2


def test_policy_and_limits_can_be_given_for_a_call() -> None:
    chat = conducting()
    assert chat.invoke("Write.", policy=Policy(single="drafter")).text == "A draft."
    with pytest.raises(RunError, match=r"limits\.tokens"):
        chat.invoke("Write.", limits=Limits(tokens=1))
    assert conducting(rounds=2).conductor.limits.rounds == 2


@pytest.mark.parametrize(
    ("option", "expected_error"),
    [
        ({"frequency_penalty": 1}, "unknown option of a call: frequency_penalty; write one of temperature, top_p"),
        ({"model": "gpt-5"}, "no profile 'gpt-5': write 'mini' or 'ultra'"),
        ({"temperature": "hot"}, "the option temperature is 'hot'"),
        ({"max_tokens": 0}, "the option max_tokens is 0"),
        ({"timeout": 0}, "the option timeout is 0"),
        ({"response_format": {"type": "xml"}}, "response_format is .*xml.*; write"),
    ],
    ids=str,
)
def test_unknown_and_invalid_call_options_are_refused(option: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(ConfigError, match=expected_error):
        conducting().invoke("Write.", **option)


@pytest.mark.parametrize(
    "option",
    [{"worker": {}}, {"rounds": 0}, {"max_retries": -1}, {"timeout": -1}, {"temperature": "hot"}, {"policy": "eu"}],
    ids=str,
)
def test_unknown_and_invalid_settings_are_refused_at_construction(option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}: "):
        conducting(**option)


def test_settings_can_be_left_to_the_config() -> None:
    chat = conducting()
    tunable = chat.configurable_fields(temperature=ConfigurableField(id="heat"), model=ConfigurableField(id="profile"))
    reply = tunable.with_config(configurable={"heat": 0.2, "profile": "mini"}).invoke("Write.")
    assert last_request(chat, "writer").sampling.temperature == 0.2
    assert reply.response_metadata["model_name"] == "conductor-mini"


def test_without_arguments_it_uses_the_discovered_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[workers.small]\nmodel = "ollama:llama3.2"\n[workers.large]\nmodel = "ollama:qwen3"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(file))
    assert list(ChatConductor().conductor.pool) == ["small", "large"]


def test_the_router_of_a_pool_file_applies_with_every_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capital_router("small", model="ollama:llama3.2").write(tmp_path / "router.json")
    (tmp_path / "pool.toml").write_text('router = "router.json"\n[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    chat = ChatConductor()
    for chat_run in (chat._prepare((), None, {}), chat._prepare((), None, {"model": "mini"})):
        assert chat_run.conductor.config.router == capital_router("small", model="ollama:llama3.2")


# -------------------------------------------------------------------------------------------- tools


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


CALLS = Message.assistant(
    tool_calls=[
        ToolCall(id="c1", name="weather", arguments='{"city": "Kyiv"}'),
        ToolCall(id="c2", name="weather", arguments='{"city": "Oslo"}'),
    ]
)
RESULTS = [ToolMessage("18 degrees", tool_call_id="c1"), ToolMessage("7 degrees", tool_call_id="c2")]


def test_the_turn_with_tool_results_goes_on_with_the_same_worker_without_planning(answer: Answer) -> None:
    chat = conducting([CALLS, "Warm and cold."])
    bound = chat.bind_tools([weather])
    call = answer(bound, "How is it?")
    assert [(tool_call["args"]["city"], tool_call["id"]) for tool_call in call.tool_calls] == [
        ("Kyiv", "c1"),
        ("Oslo", "c2"),
    ]
    stored = messages_from_dict(messages_to_dict([HumanMessage("How is it?"), call, *RESULTS]))
    assert answer(bound, stored).text == "Warm and cold."
    first, second = scripted(chat, "writer").requests
    assert second.messages[0] == first.messages[0]
    assert [turn.text for turn in second.messages[2:]] == ["18 degrees", "7 degrees"]
    assert len(scripted(chat, "planner").requests) == len(scripted(chat, "drafter").requests) == 1


def test_a_forged_continuation_gives_no_worker_what_the_policy_denies() -> None:
    chat = conducting([CALLS, "Warm."])
    call = chat.bind_tools([weather]).invoke("How is it?")
    denied = chat.bind_tools([weather]).invoke(
        [HumanMessage("How is it?"), call, *RESULTS], policy=Policy(deny=frozenset({"writer"}), single="drafter")
    )
    assert denied.text == "A draft."


def test_tools_reach_the_last_worker_as_they_were_bound() -> None:
    chat = conducting([CALLS])
    chat.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False, strict=True).invoke("How is it?")
    request = last_request(chat, "writer")
    assert (request.tool_choice, request.parallel_tool_calls) == ("weather", False)
    assert request.tools[0].parameters["additionalProperties"] is False
    assert last_request(chat, "drafter").tools == ()


def test_a_tool_call_with_invalid_arguments_is_invalid_in_streams_as_well() -> None:
    broken = ToolCall(id="c2", name="weather", arguments='{"city": "Oslo",')
    calls = Message.assistant(tool_calls=[*CALLS.tool_calls, broken]).model_copy(update={"name": "bob"})
    whole = conducting([calls]).bind_tools([weather]).invoke("How is it?")
    *_, last = conducting([calls]).bind_tools([weather]).stream("How is it?")
    assert (last.tool_calls, last.invalid_tool_calls) == (whole.tool_calls, whole.invalid_tool_calls)
    assert [call["args"] for call in last.invalid_tool_calls] == [broken.arguments]
    assert last.name == "bob"


def test_calls_of_tools_in_a_stream_are_numbered() -> None:
    *_, last = conducting([CALLS]).bind_tools([weather]).stream("How is it?")
    assert isinstance(last, AIMessageChunk)
    assert [(call["index"], call["id"]) for call in last.tool_call_chunks] == [(0, "c1"), (1, "c2")]


@pytest.mark.parametrize("options", [{"timeout": 0.05}, {"timeout": 0.05, "limits": Limits(seconds=60)}], ids=str)
def test_a_run_that_takes_longer_than_its_timeout_names_it(options: dict[str, Any]) -> None:
    async def work(subtask: str) -> str:
        await asyncio.sleep(SOON)
        return subtask

    with pytest.raises(RunError, match=r"timeout=0\.05 was over before function:work had answered"):
        conducting(workers={"a": work}, **options).invoke("Go on.")
    with pytest.raises(RunError, match=r"limits\.seconds=0\.04 was over"):
        conducting(workers={"a": work}, timeout=60, limits=Limits(seconds=0.04)).invoke("Go on.")


def test_a_tool_choice_in_anthropics_form_may_forbid_parallel_calls() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    for bound in ({"tool_choice": choice}, {"tool_choice": choice, "parallel_tool_calls": True}):
        chat = conducting([CALLS])
        chat.bind_tools([weather], **bound).invoke("How is it?")
        assert not last_request(chat, "writer").parallel_tool_calls
    chat = conducting([CALLS])
    chat.bind(tools=[weather], tool_choice=choice).invoke("How is it?")
    assert not last_request(chat, "writer").parallel_tool_calls


def test_bind_tools_refuses_tools_that_no_answering_worker_supports() -> None:
    workers = {"mute": ScriptedModel("Hi.", capabilities=Capabilities()), "able": ScriptedModel("Hi.")}
    with pytest.raises(PolicyError, match=r"no worker that may answer takes \(mute\); add or allow one that does"):
        ChatConductor(workers={"mute": workers["mute"]}).bind_tools([weather])
    pinned = ChatConductor(workers=workers, policy=Policy(final="mute"))
    with pytest.raises(PolicyError, match="the request needs tools"):
        pinned.bind_tools([weather])
    assert pinned.bind_tools([weather], policy=Policy()).invoke("Hello").text == "Hi."


def test_a_choice_of_a_tool_that_is_not_there_is_refused_when_it_is_bound() -> None:
    with pytest.raises(ConfigError, match="tool_choice is 'now'"):
        conducting().bind_tools([weather], tool_choice="now")


def test_an_agent_runs_on_it() -> None:
    chat = conducting([CALLS, "Warm and cold."])
    state = create_agent(chat, [weather]).invoke({"messages": [HumanMessage("How is it?")]})
    assert state["messages"][-1].text == "Warm and cold."
    assert len(scripted(chat, "planner").requests) == 1


# ------------------------------------------------------------------------------- structured answers


class Place(BaseModel):
    """A place."""

    city: str


class PlaceDict(TypedDict):
    """A place."""

    city: str


@pytest.mark.parametrize(
    ("schema", "expected"),
    [(Place, Place(city="Oslo")), (PlaceDict, {"city": "Oslo"}), (Place.model_json_schema(), {"city": "Oslo"})],
    ids=["pydantic", "TypedDict", "JSON schema"],
)
def test_answers_come_as_objects(schema: Any, expected: Any) -> None:
    chat = conducting('{"city": "Oslo"}')
    assert chat.with_structured_output(schema).invoke("Where?") == expected
    assert list(chat.with_structured_output(schema).stream("Where?"))[-1] == expected
    form = last_request(chat, "writer").response_format
    assert form is not None
    assert form.type == "json"
    assert form.json_schema is not None
    assert list(form.json_schema["properties"]) == ["city"]


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_structured_output_that_no_worker_supports_is_refused_at_once(method: Any) -> None:
    chat = ChatConductor(workers={"mute": ScriptedModel("Hi.", capabilities=Capabilities())})
    with pytest.raises(PolicyError, match="add or allow one that does"):
        chat.with_structured_output(Place, method=method)


def test_an_answer_that_does_not_parse_is_an_error_or_data() -> None:
    chat = conducting('{"town": "Oslo"}')
    with pytest.raises(OutputParserException, match="Failed to parse Place"):
        chat.with_structured_output(Place, strict=False).invoke("Where?")
    result = chat.with_structured_output(Place, strict=False, include_raw=True).invoke("Where?")
    assert (result["raw"].text, result["parsed"]) == ('{"town": "Oslo"}', None)
    assert "Failed to parse Place" in str(result["parsing_error"])


def test_an_answer_that_is_no_json_is_no_answer() -> None:
    with pytest.raises(RunError, match="the reply is not JSON"):
        conducting("Oslo!").with_structured_output(Place).invoke("Where?")


@pytest.mark.parametrize("schema", [PlaceDict, Place], ids=["dict", "pydantic"])
def test_truncated_structured_output_is_an_error(schema: Any) -> None:
    half = says('{"city": "Os').model_copy(update={"finish_reason": "length"})
    chat = conducting(lambda _: half).with_structured_output(schema)
    with pytest.raises(OutputParserException, match="raise max_tokens"):
        chat.invoke("Where?")
    with pytest.raises(OutputParserException, match="raise max_tokens"):
        list(chat.stream("Where?"))
    just_whole = says('{"city": "Oslo"}').model_copy(update={"finish_reason": "length"})
    assert conducting([just_whole]).with_structured_output(Place).invoke("Where?") == Place(city="Oslo")


def test_structured_output_and_tools_can_be_combined() -> None:
    chat = conducting(['{"city": "Oslo"}'])
    assert chat.with_structured_output(Place, tools=[weather]).invoke("Where?") == Place(city="Oslo")
    request = last_request(chat, "writer")
    assert isinstance(request.response_format, JsonFormat)
    assert [tool.name for tool in request.tools] == ["weather"]


def test_a_schema_of_any_title_gets_a_name_that_vendors_take() -> None:
    chat = conducting(['{"city": "Oslo"}'])
    chat.with_structured_output({**Place.model_json_schema(), "title": "My Place[int]"}).invoke("Where?")
    form = last_request(chat, "writer").response_format
    assert isinstance(form, JsonFormat)
    assert form.name == "My_Place_int_"


def test_structured_output_can_use_a_tool_call_or_any_json() -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="c", name="Place", arguments='{"city": "Oslo"}')])
    for schema, expected in ((Place, Place(city="Oslo")), (Place.model_json_schema(), {"city": "Oslo"})):
        assert conducting([call]).with_structured_output(schema, method="function_calling").invoke("?") == expected
    chat = conducting('{"city": "Oslo"}')
    assert chat.with_structured_output(Place, method="json_mode").invoke("?") == Place(city="Oslo")
    with pytest.raises(ConfigError, match="method is 'xml'"):
        chat.with_structured_output(Place, method="xml")  # type: ignore[arg-type]


def test_strict_reaches_the_tool_call() -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="c", name="Place", arguments='{"city": "Oslo"}')])
    chat = conducting([call])
    chat.with_structured_output(Place, method="function_calling", strict=True).invoke("Where?")
    (offered,) = last_request(chat, "writer").tools
    assert offered.parameters["additionalProperties"] is False


@pytest.mark.parametrize("schema", ["place", {"type": "object", "properties": {}}])
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigError, match="write a pydantic class"):
        conducting().with_structured_output(schema)


# -------------------------------------------------------------------------------- LangChain's habits


def test_a_cache_saves_the_second_run_and_tells_configurations_apart() -> None:
    cache = InMemoryCache()
    chat = conducting(cache=cache)
    first, second = chat.invoke("Write."), chat.invoke("Write.")
    assert first.text == second.text
    assert len(scripted(chat, "planner").requests) == 1
    chat.invoke("Write.", temperature=1.0)
    assert len(scripted(chat, "planner").requests) == 2
    other = {"drafter": ScriptedModel("A draft."), "writer": ScriptedModel("Another answer.", name="other")}
    assert conducting(cache=cache, workers=other).invoke("Write.").text == "Another answer."


def test_a_cache_tells_workers_of_other_settings_apart() -> None:
    def answer(text: str, **options: Any) -> str:
        chat = FakeListChatModel(responses=[text], **options)
        return ChatConductor(workers={"a": chat}, policy=Policy(single="a"), cache=cache).invoke("Write.").text

    cache = InMemoryCache()
    first = answer("One.", sleep=0.001)
    assert (first, answer("One.", sleep=0.001), answer("Two.", sleep=0.002)) == ("One.", "One.", "Two.")


def test_long_conversations_are_trimmed_by_an_estimate_of_their_tokens() -> None:
    chat = conducting()
    history = [HumanMessage("x" * 4000), AIMessage("y" * 4000), HumanMessage("Go on.")]
    assert trim_messages(history, max_tokens=20, token_counter=chat, strategy="last") == history[2:]
    exactly = conducting(custom_get_token_ids=lambda text: [ord(character) for character in text])
    assert (chat.get_num_tokens("12345"), exactly.get_num_tokens("12345")) == (2, 5)


def test_an_agent_summarizes_by_the_length_of_the_conversation_and_not_by_the_cost_of_its_runs() -> None:
    chat = conducting(lambda _: says("A short answer.", input_tokens=5000))
    agent = create_agent(
        chat, middleware=[SummarizationMiddleware(chat, trigger=("tokens", 3000), keep=("messages", 1))]
    )
    messages: list[Any] = []
    for _ in range(2):
        messages = agent.invoke({"messages": [*messages, HumanMessage("Write.")]})["messages"]
    assert messages[-1].usage_metadata["total_tokens"] > 5000
    assert [message.text for message in messages] == ["Write.", "A short answer."] * 2


@pytest.mark.parametrize("answer", [lambda chat: chat.invoke("Hi."), lambda chat: streamed(chat.stream("Hi."))])
def test_a_refusal_ends_with_langchains_block(answer: Callable[[ChatConductor], AIMessage]) -> None:
    message = answer(conducting([says("I can't.").model_copy(update={"finish_reason": "content_filter"})]))
    assert message.content[-1] == {"type": "refusal", "refusal": "I can't."}
    assert message.text == "I can't."


def test_a_rate_limiter_is_used() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=1000, max_bucket_size=10)
    limiter.available_tokens = 10
    conducting(rate_limiter=limiter).invoke("Write.")
    assert limiter.available_tokens < 10


def test_fallbacks_and_retries_of_langchain_work() -> None:
    broken = conducting(down, draft=down, max_retries=0)
    assert broken.with_fallbacks([conducting()]).invoke("Write.").text == "The whole answer."
    twice = conducting(
        workers={"writer": ScriptedModel([ModelError("down", model="x"), "Now."])},
        plans=plan((0, "a", [])),
        max_retries=0,
    )
    assert twice.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke("Write.").text == "Now."


def test_it_is_written_down_with_its_secrets_as_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-secret-0123456789"
    chat = ChatConductor(
        workers={"a": ChatOpenAI(model="gpt-4o-mini", api_key=key), "b": "ollama:llama3.2"},
        model="mini",
        policy=Policy(final="a"),
        limits=Limits(usd="0.5"),
        temperature=0.1,
    )
    text = dumps(chat)
    assert key not in text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        loaded = loads(
            text,
            allowed_objects=[ChatConductor, ChatOpenAI],
            valid_namespaces=["langchain_conductor"],
            secrets_map={"OPENAI_API_KEY": key},
        )
    assert loaded.asdict() == chat.asdict()
    assert loaded.workers["a"].openai_api_key.get_secret_value() == key
    assert (loaded.policy, loaded.limits) == (chat.policy, chat.limits)


def test_what_is_written_down_names_the_package_and_not_a_module_of_it() -> None:
    class OwnConductor(ChatConductor):
        """A user's own class."""

    assert ChatConductor.lc_id() == ["langchain_conductor", "chat", "ChatConductor"]
    assert OwnConductor.lc_id() == [*__name__.split("."), "OwnConductor"]


def test_an_unpickled_copy_opens_its_own_connections() -> None:
    chat = ChatConductor(workers={"a": FakeListChatModel(responses=["Hi."])}, policy=Policy(single="a"))
    chat.invoke("Hello")
    copy = pickle.loads(pickle.dumps(chat))
    assert copy.asdict() == chat.asdict()
    assert copy.conductor is not chat.conductor
    assert copy.invoke("Hello").text == "Hi."


def test_an_unpickled_copy_opens_them_once_for_all_streams() -> None:
    copy = pickle.loads(pickle.dumps(ChatConductor(workers={"a": FakeListChatModel(responses=["Hi."])})))
    assert copy._for_run(None).conductor is copy._for_run(None).conductor


def test_an_unpickled_copy_has_the_same_core_models() -> None:
    chat = ChatConductor(workers={"a": Worker.of("a", model("openai:gpt-5", api_key="sk-none"), concurrency=2)})
    copy = pickle.loads(pickle.dumps(chat))
    assert copy.conductor.pool["a"].model.name == "openai:gpt-5"
    assert copy.conductor.pool["a"].slots is not None


def test_tracers_get_provider_and_model_name() -> None:
    params = conducting(model="ultra", temperature=0.5, max_tokens=7, stop=["X"])._get_ls_params()
    assert params == {
        "ls_provider": "conductor",
        "ls_model_name": "conductor-ultra",
        "ls_model_type": "chat",
        "ls_temperature": 0.5,
        "ls_max_tokens": 7,
        "ls_stop": ["X"],
    }


def test_the_profile_lists_the_capabilities_of_the_workers() -> None:
    profile = conducting().profile
    assert profile is not None
    assert profile["tool_calling"]
    assert profile["structured_output"]
    mute = ChatConductor(workers={"a": ScriptedModel("Hi.", capabilities=Capabilities())})
    assert mute.profile is not None
    assert not mute.profile["tool_calling"]


async def test_its_events_are_langchains_own() -> None:
    events = [event async for event in conducting().astream_events("Write.", version="v2")]
    texts = [event["data"]["chunk"].text for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(texts) == "The whole answer."
    custom = [event["name"] for event in events if event["event"] == "on_custom_event"]
    assert custom[0] == "conductor_workflow_planned"
    assert custom.count("conductor_step_started") == custom.count("conductor_step_finished") == 2


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_plan_has_room_for_the_thinking_of_its_model(is_bound: bool) -> None:
    thinking = {"type": "enabled", "budget_tokens": 4_000}
    chat = ChatAnthropic(model="claude-sonnet-4-5", api_key=SecretStr("k"), max_tokens=8_000)
    thinks = chat.bind(thinking=thinking) if is_bound else chat.model_copy(update={"thinking": thinking})
    for conductor in (ChatConductor({"a": thinks}), ChatConductor({"a": chat}, planner=thinks)):
        assert conductor.conductor.planner.sampling.max_tokens == 1_024 + 4_000
    assert ChatConductor({"a": chat}).conductor.planner.sampling.max_tokens == 1_024
