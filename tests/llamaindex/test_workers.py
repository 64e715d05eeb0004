"""LlamaIndex's LLMs as workers: custom ones without async methods, and a vendor's real integration."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from llama_index.core import Settings, SummaryIndex
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    ImageBlock,
    LLMMetadata,
    TextBlock,
    ThinkingBlock,
)
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import MockLLM
from llama_index.core.rate_limiter import BaseRateLimiter
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import BaseTool, RetrieverTool
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel, PrivateAttr
from typing_extensions import override

from core.runs import SOON
from llama_index.llms.conductor import Conductor, LLMModel, pool_of
from llama_index.llms.conductor.workers import INDEX_DESCRIPTION
from llamaindex.ollama_server import ollama
from llamaindex.scripts import EchoLLM, conductor, plan, planner, response_text, user_messages
from rl_conductor import (
    Capabilities,
    Limits,
    Message,
    ModelError,
    Policy,
    Price,
    Request,
    RunError,
    Sampling,
    ScriptedModel,
    Tool,
)
from rl_conductor.errors import AuthenticationError, BadRequestError, ContextLengthError, RateLimitError
from rl_conductor.types import Delta, ImagePart, ReasoningPart, ToolCall

PNG = "iVBORw0KGgo="

LOOK = Tool(name="look", description="Look somewhere.", parameters={"type": "object", "properties": {"at": {}}})
LOOK_CALL = {"tool_calls": [{"function": {"name": "look", "arguments": {"at": "the sky"}}}]}


def question(**more: object) -> Request:
    return Request.model_validate({"messages": (Message.user("Why?"),), **more})


def ollama_llm(url: str) -> Ollama:
    return Ollama(model="tiny", base_url=url, context_window=2048)


async def test_a_custom_llm_drafts_and_answers() -> None:
    llm = Conductor({"drafter": EchoLLM(), "writer": EchoLLM()}, planner=planner())
    assert response_text(await llm.achat(user_messages("Why?"))) == "An echo."
    assert [piece.delta async for piece in await llm.astream_chat(user_messages("Why?"))] == ["An ", "echo.", ""]


BARRIER = threading.Barrier(2, timeout=SOON)


class BarrierLLM(EchoLLM):
    """Answers only while another instance runs too."""

    def _before_reply(self) -> None:
        BARRIER.wait()


async def test_llms_without_async_methods_run_in_parallel() -> None:
    steps = plan((0, "One.", []), (1, "Two.", []), (2, "Both.", [0, 1]))
    workers = {"one": BarrierLLM(), "two": BarrierLLM(), "both": ScriptedModel("Done.")}
    llm = Conductor(workers, planner=planner(steps), access="positional")
    await llm.achat(user_messages("Why?"))
    assert not BARRIER.broken


class ChatEchoLLM(EchoLLM):
    """A chat model, about which LlamaIndex does not say whether it reads images."""

    @property
    @override
    def metadata(self) -> LLMMetadata:
        return super().metadata.model_copy(update={"is_chat_model": True})


def test_an_llm_that_reads_no_images_gets_a_note_in_their_place() -> None:
    assert LLMModel(ChatEchoLLM()).capabilities.images
    echo, planned = ChatEchoLLM(), planner()
    llm = conductor(LLMModel(echo, capabilities=Capabilities()), planner=planned)
    llm.chat([ChatMessage(blocks=[TextBlock(text="What is it?"), ImageBlock(url="https://example.org/kite.png")])])
    assert "[image attached; not shown to this model]" in echo.prompts[0]
    assert "only model 1 can read" in planned.requests[0].messages[-1].text


async def test_an_image_of_a_tool_result_comes_in_a_message_of_the_user() -> None:
    call = ToolCall(id="c1", name="camera", arguments="{}")
    asked = Message(role="assistant", tool_calls=(call,))
    result = Message(role="tool", content=(ImagePart(data=PNG),), tool_call_id="c1")
    with ollama({"content": "A kite."}) as server:
        await LLMModel(ollama_llm(server.url)).complete(question(messages=(Message.user("Look."), asked, result)))
    *_, seen, follow_up = server.requests[0]["messages"]
    assert (seen["role"], seen.get("images")) == ("tool", None)
    assert (follow_up["role"], follow_up["images"]) == ("user", [PNG])


def test_limits_and_prices_apply_to_each_call_of_a_nested_conductor() -> None:
    echo = ScriptedModel("An echo.", price=Price(input=0, output=0, per_call=Decimal("0.5")))
    alone = plan((0, "Go.", []))
    inner = Conductor({"echo": echo}, planner=planner(alone), temperature=0.3, max_tokens=50)
    llm = Conductor({"inner": inner, "plain": ScriptedModel("Hi.")}, planner=planner(alone))
    assert llm.complete("Why?").text == "An echo."
    assert llm.trace is not None
    used = llm.trace.usage_by_worker["inner"]
    assert (used.calls, used.cost, used.unpriced_calls) == (2, Decimal("0.5"), 0)
    assert echo.requests[0].sampling == Sampling(temperature=0.3, max_tokens=50)
    llm = Conductor(inner, planner=planner(alone), limits=Limits(calls=1))
    with pytest.raises(RunError, match=r"limits\.calls"):
        llm.complete("Why?")


def test_the_context_window_of_a_nested_conductor_is_used() -> None:
    index = SummaryIndex([]).as_retriever()
    inner = Conductor({"large": EchoLLM(window=9_000), "index": index}, planner=planner())
    assert Conductor(inner, planner=planner()).metadata.context_window == 9_000
    inner.context_window = 800
    assert Conductor(inner, planner=planner()).metadata.context_window == 800


@pytest.mark.parametrize("stream", [False, True])
async def test_a_nested_conductor_uses_its_own_rate_limiter(*, stream: bool) -> None:
    limiter = CountingRateLimiter()
    inner = Conductor({"echo": ScriptedModel("Hi.")}, policy=Policy(single="echo"), rate_limiter=limiter)
    llm = Conductor({"inner": inner}, policy=Policy(single="inner"))
    await llm.conductor.run("Why?", stream=stream)
    assert limiter.acquired == 1


class CountingRateLimiter(BaseRateLimiter):
    """Counts how often it is acquired."""

    acquired = 0

    def acquire(self, num_tokens: int = 0) -> None:
        self.acquired += 1

    async def async_acquire(self, num_tokens: int = 0) -> None:
        self.acquired += 1


def test_errors_of_an_llm_are_not_retried_but_another_worker_takes_the_step() -> None:
    broken = EchoLLM(fails=True)
    llm = conductor(broken)
    llm.complete("Why?")
    assert llm.trace is not None
    first = llm.trace.results[0]
    assert first.step.worker == "writer"
    assert "the line is down" in (first.error or "")
    alone = Conductor({"broken": broken}, planner=planner(plan((0, "Go.", []))))
    with pytest.raises(RunError, match="the line is down"):
        alone.complete("Why?")


def test_tokens_are_counted_once_by_a_shared_counter() -> None:
    counter = TokenCountingHandler()
    both = CallbackManager([counter])
    llm = Conductor({"a": EchoLLM(callback_manager=both)}, planner=planner(plan((0, "Go.", []))), callback_manager=both)
    llm.complete("Why?")
    assert llm.trace is not None
    assert counter.total_llm_token_count == llm.trace.usage.total_tokens
    assert len(counter.llm_token_counts) == 1


def test_tokens_are_counted_once_by_a_counter_in_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TokenCountingHandler()
    monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([counter]))
    llm = Conductor({"a": EchoLLM()}, planner=planner(plan((0, "Go.", []))))
    llm.complete("Why?")
    assert llm.trace is not None
    assert counter.total_llm_token_count == llm.trace.usage.total_tokens
    assert len(counter.llm_token_counts) == 1


async def test_a_vendors_integration_answers() -> None:
    with ollama({"content": "Because."}) as server:
        model = LLMModel(ollama_llm(server.url))
        completion = await model.complete(question(sampling=Sampling(temperature=0.5)))
    assert completion.text == "Because."
    assert (completion.usage.input_tokens, completion.usage.output_tokens) == (40, 5)
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Why?"}]


async def test_a_vendors_integration_streams() -> None:
    with ollama({"content": "Because it is."}) as server:
        deltas: list[Delta] = [delta async for delta in LLMModel(ollama_llm(server.url)).stream(question())]
    assert [delta.text for delta in deltas if delta.text] == ["Because ", "it ", "is. "]
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.text == "Because it is. "


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "unsupported value", BadRequestError),
        (400, "the input exceeds the context length", ContextLengthError),
        (401, "unauthorized", AuthenticationError),
        (429, "too many requests", RateLimitError),
        (500, "out of memory", ModelError),
    ],
)
async def test_the_status_of_a_vendors_error_is_in_the_trace(
    status: int, message: str, kind: type[ModelError], *, stream: bool
) -> None:
    with ollama(*[{"status": status, "error": message}] * 3) as server:
        model = LLMModel(ollama_llm(server.url))
        with pytest.raises(kind, match=message) as caught:
            [delta async for delta in model.stream(question())] if stream else await model.complete(question())
        assert (caught.value.status, caught.value.retryable) == (status, False)
        llm = Conductor({"a": ollama_llm(server.url)}, planner=planner(plan((0, "Go.", []))))
        with pytest.raises(RunError) as failure:
            await llm.acomplete("Why?")
    (call,) = [call for call in failure.value.trace.calls if call.worker == "a"]
    assert call.status == status


async def test_a_reply_that_the_vendor_cut_off_says_so() -> None:
    cut_off = {"content": "Because", "done_reason": "length"}
    with ollama(cut_off, cut_off) as server:
        model = LLMModel(ollama_llm(server.url))
        completion = await model.complete(question())
        *_, last = [delta async for delta in model.stream(question())]
    assert completion.finish_reason == "length"
    assert last.completion is not None
    assert last.completion.finish_reason == "length"


class _Choice(BaseModel):
    """A choice as in the SDK of OpenAI."""

    finish_reason: str | None


class _Reply(BaseModel):
    """A reply, or a chunk of it."""

    choices: list[_Choice]


class RawLLM(EchoLLM):
    """Returns these raw responses of a vendor: the last for a reply, one with each chunk for a stream."""

    raw: list[Any]

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="An echo.", raw=self.raw[-1])

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        yield from (CompletionResponse(text="An echo.", delta="An echo.", raw=raw) for raw in self.raw)


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        (_Reply(choices=[_Choice(finish_reason="length")]), "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"candidates": [{"finishReason": "SAFETY"}]}, "content_filter"),
        ({"stopReason": "end_turn"}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "completed", "incomplete_details": None}, "stop"),
        (None, "stop"),
    ],
)
async def test_the_vendors_reason_is_read_from_its_raw_response(raw: Any, finish: str) -> None:
    assert (await LLMModel(RawLLM(raw=[raw])).complete(question())).finish_reason == finish


class MuteLLM(RawLLM):
    """Its responses have no content."""

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="", raw=self.raw[-1])


async def test_a_refusal_is_the_text_of_the_reply_and_marked_as_one() -> None:
    raw = {"choices": [{"finish_reason": "stop", "message": {"refusal": "I can't help."}}]}
    completion = await LLMModel(MuteLLM(raw=[raw])).complete(question())
    assert (completion.text, completion.finish_reason, completion.is_refusal) == (
        "I can't help.",
        "content_filter",
        True,
    )


async def test_the_reason_may_come_before_the_last_chunk() -> None:
    chunks = [_Reply(choices=[_Choice(finish_reason="length")]), _Reply(choices=[])]  # the last one has the usage
    *_, last = [delta async for delta in LLMModel(RawLLM(raw=chunks)).stream(question())]
    assert last.completion is not None
    assert last.completion.finish_reason == "length"


class EventsLLM(EchoLLM):
    """Streams events as OpenAI's Responses API does: each has its own text only, and the last one none."""

    @override
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        for delta in ("An ", "echo"):
            yield ChatResponse(message=ChatMessage(role="assistant", content=delta), delta=delta, raw={"delta": delta})
        yield ChatResponse(message=ChatMessage(role="assistant", blocks=[]), delta="", raw={"response": ended})


async def test_a_stream_that_ends_with_an_event_without_content_keeps_its_text() -> None:
    *_, last = [delta async for delta in LLMModel(EventsLLM()).stream(question())]
    assert last.completion is not None
    assert (last.completion.text, last.completion.finish_reason) == ("An echo", "length")


class RefusingLLM(EchoLLM):
    """Refuses as LlamaIndex's LLM of OpenAI's Responses API does."""

    @override
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[]), additional_kwargs={"refusal": "No."})


async def test_a_refusal_of_openais_responses_api_is_marked_as_one() -> None:
    completion = await LLMModel(RefusingLLM()).complete(question())
    assert (completion.text, completion.is_refusal) == ("No.", True)


async def test_tool_calls_of_an_integration_without_ids_get_unique_ids() -> None:
    twice = {"tool_calls": LOOK_CALL["tool_calls"] * 2}
    with ollama(twice) as server:
        completion = await LLMModel(ollama_llm(server.url)).complete(question(tools=(LOOK,)))
    first, second = completion.message.tool_calls
    assert (first.name, first.arguments) == ("look", '{"at": "the sky"}')
    assert len({first.id, second.id, "look"}) == 3
    assert server.requests[0]["tools"][0]["function"]["parameters"] == LOOK.parameters
    assert completion.finish_reason == "tool_calls"


async def test_only_the_required_tool_is_offered() -> None:
    other = Tool(name="other", description="Another.")
    with ollama(LOOK_CALL, {"content": "No."}) as server:
        model = LLMModel(ollama_llm(server.url))
        await model.complete(question(tools=(LOOK, other), tool_choice="look"))
        await model.complete(question(tools=(LOOK, other), tool_choice="none"))
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["look"]
    assert not server.requests[1].get("tools")


async def test_an_llm_that_reads_the_class_of_a_tools_schema_gets_the_tools_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schemas: list[dict[str, Any]] = []
    prepare = Ollama._prepare_chat_with_tools

    def read_class_and_prepare(llm: Any, tools: Sequence[BaseTool], **kwargs: Any) -> Any:
        """Does what Google's LLM does with the schemas of tools: reads them from their classes, and changes them."""
        for tool in tools:
            assert tool.metadata.fn_schema is not None
            schema = tool.metadata.fn_schema.model_json_schema()
            schemas.append(dict(schema))
            schema.clear()
        return prepare(llm, tools, **kwargs)

    monkeypatch.setattr(Ollama, "_prepare_chat_with_tools", read_class_and_prepare)
    tool = LOOK.model_copy(update={"parameters": {"$schema": "http://json-schema.org/schema", **LOOK.parameters}})
    with ollama(LOOK_CALL) as server:
        await LLMModel(ollama_llm(server.url)).complete(question(tools=(tool,)))
    assert schemas == [LOOK.parameters]
    assert server.requests[0]["tools"][0]["function"]["parameters"]["properties"] == LOOK.parameters["properties"]


async def test_continuations_are_not_sent_to_a_vendors_integration() -> None:
    with ollama({"content": "Blue."}) as server:
        call = Message.assistant(tool_calls=[{"id": "1", "name": "look", "arguments": '{"at": "x"}'}])  # type: ignore[list-item]
        messages = (Message.user("Why?"), call, Message.tool("1", "blue"))
        await LLMModel(ollama_llm(server.url)).complete(Request(messages=messages))
    assert server.requests[0]["messages"][1]["tool_calls"] == [{"function": {"name": "look", "arguments": {"at": "x"}}}]
    assert "continuation" not in str(server.requests)


async def test_an_empty_reply_is_an_error() -> None:
    with ollama({"content": ""}) as server:
        model = LLMModel(ollama_llm(server.url))
        with pytest.raises(ModelError, match="empty"):
            await model.complete(question())


async def test_cancelling_while_a_thread_waits_raises_no_model_error() -> None:
    slow = EchoLLM(seconds=0.5)

    async def read() -> None:
        async for _ in LLMModel(slow).stream(question()):
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


def test_the_capabilities_of_an_llm_are_read_from_its_metadata() -> None:
    echo = LLMModel(EchoLLM())
    assert echo.name == "llamaindex:echo"
    assert echo.capabilities.names == frozenset()
    assert LLMModel(ollama_llm("http://127.0.0.1:1")).capabilities.names == {"tools", "images", "files"}


def test_a_context_window_that_an_llm_does_not_know_rejects_no_request() -> None:
    assert LLMModel(EchoLLM(window=3900)).capabilities.context == 3900
    assert LLMModel(MockLLM()).capabilities.context is None
    llm = Conductor({"mock": MockLLM(max_tokens=1)}, planner=planner(plan((0, "Say it.", []))))
    assert llm.complete("word " * 20_000).text


def test_a_pool_of_mixed_workers() -> None:
    pool = pool_of({"echo": EchoLLM(), "scripted": ScriptedModel("Hi.")})
    assert [worker.model.name for worker in pool.values()] == ["llamaindex:echo", "scripted:scripted"]
    assert pool["echo"].sampling == Sampling()


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_an_llm_contain_no_keys(*, stream: bool) -> None:
    llm = Conductor({"echo": EchoLLM(fails=True)}, planner=planner(plan((0, "Say it.", []))))
    with pytest.raises(RunError) as caught:
        await llm._core.run("Why?", stream=stream)
    text = str(caught.value) + caught.value.trace.model_dump_json()
    assert "raised OSError: the line is down, and Bearer [secret] was" in text
    assert "sk-very-secret" not in text


def test_the_planner_reads_names_and_descriptions() -> None:
    scripted = planner(plan((0, "Go.", [])))
    engine = SummaryIndex([]).as_retriever()
    about = RetrieverTool.from_defaults(engine, name="handbook", description="Knows the house rules.")
    workers = {
        "math_expert": EchoLLM(),
        "rules": about,
        "archive": engine,
        "letters": {"model": engine, "description": "Finds old letters."},
        "coder": {"model": "ollama:qwen3", "description": "Writes code."},
    }

    Conductor(workers, planner=scripted).complete("Why?")

    _, _, models = scripted.requests[0].messages[0].text.partition("The models ($ per million tokens in/out):\n")
    assert models.splitlines() == [
        "0 math_expert",
        "1 rules: Knows the house rules; free",
        f"2 archive: {INDEX_DESCRIPTION}; free",
        "3 letters: Finds old letters; free",
        "4 coder: Writes code; free",
    ]


def test_an_entry_with_an_object_is_serialised_as_its_class() -> None:
    llm = Conductor({"a": {"model": EchoLLM(), "description": "Echoes."}}, planner=planner())

    assert llm.to_dict()["workers"] == {"a": {"object": "EchoLLM"}}


class ReasoningEchoLLM(EchoLLM):
    """Has OpenAI's field for the effort, and records the keywords of its calls."""

    reasoning_effort: str | None = None
    _keywords: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @override
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._keywords.append(kwargs)
        response: ChatResponse = super().chat(messages)
        return response


@pytest.mark.parametrize("keyword", ["effort", "reasoning_effort"])
def test_the_reasoning_effort_reaches_an_llm_that_has_the_field(keyword: str) -> None:
    reasoning = ReasoningEchoLLM()
    llm = Conductor({"a": reasoning}, planner=planner(plan((0, "Go.", []))))
    llm.chat(user_messages("Why?"), **{keyword: "low"})
    assert [keywords["reasoning_effort"] for keywords in reasoning._keywords] == ["low"]


async def test_a_reasoning_effort_for_another_llm_is_refused() -> None:
    with pytest.raises(BadRequestError, match="EchoLLM has no field reasoning_effort"):
        await LLMModel(EchoLLM()).complete(question(sampling=Sampling(effort="low")))


def test_the_system_prompt_of_an_llm_stays_in_force_as_a_worker() -> None:
    lawyer = EchoLLM(system_prompt="You are a lawyer.")
    Conductor({"a": lawyer}, planner=planner(plan((0, "Go.", [])))).complete("Why?")
    assert lawyer.prompts[0].startswith("system: You are a lawyer.")


class ThinkingEchoLLM(EchoLLM):
    """Signs its thoughts, as Claude does."""

    @override
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        thoughts = [ThinkingBlock(content=text, additional_information={"signature": "sig"}) for text in ("Hm.", None)]
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[*thoughts, TextBlock(text="Yes.")]))


async def test_the_signature_of_reasoning_is_kept_for_its_vendor() -> None:
    completion = await LLMModel(ThinkingEchoLLM()).complete(question())
    signed = [part for part in completion.message.content if isinstance(part, ReasoningPart)]
    assert signed == [ReasoningPart(text="Hm.", signature="sig"), ReasoningPart(text="", signature="sig")]


@pytest.mark.parametrize("as_entry", [False, True])
def test_a_function_is_a_worker(*, as_entry: bool) -> None:
    def shout(subtask: str) -> str:
        """Says it louder."""
        return subtask.upper()

    worker: Any = {"model": shout, "description": "shouts"} if as_entry else shout
    pool = pool_of({"loud": worker})
    assert pool["loud"].card.description == ("shouts" if as_entry else "Says it louder.")
    assert Conductor({"loud": worker}, planner=planner(plan((0, "Say it.", [])))).complete("hi").text == "SAY IT."


NODE = NodeWithScore(node=TextNode(text="Anna earns 5,400 euros."))


@pytest.mark.parametrize(
    ("result", "reply"),
    [
        (Response("5,400", source_nodes=[NODE]), "5,400"),
        ([NODE, NODE], "Anna earns 5,400 euros.\n\nAnna earns 5,400 euros."),
        (ChatResponse(message=ChatMessage(role="assistant", content="5,400")), "5,400"),
        (iter([CompletionResponse(text="5,"), CompletionResponse(text="5,400")]), "5,400"),
        ({"euros": 5400}, '{"euros":5400}'),
    ],
    ids=["engine", "retriever", "chat", "stream", "data"],
)
def test_the_text_of_a_response_that_a_function_returns_is_the_reply(result: object, reply: str) -> None:
    llm = Conductor({"salaries": lambda _: result}, planner=planner(plan((0, "What does Anna earn?", []))))
    assert llm.complete("How much?").text == reply


def test_a_function_that_returns_nothing_fails() -> None:
    llm = Conductor({"salaries": lambda _: None}, planner=planner(plan((0, "What does Anna earn?", []))))
    with pytest.raises(RunError, match="returned nothing"):
        llm.complete("How much?")
