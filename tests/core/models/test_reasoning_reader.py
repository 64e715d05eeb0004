"""The end of reasoning and the beginning of the reply, as declared, observed or guessed for a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from core.runs import pool_of, workflow
from rl_conductor import Conductor, Message, Request, RunError, ScriptedModel
from rl_conductor.errors import ModelError
from rl_conductor.models.base import Capabilities
from rl_conductor.models.replies.reasoning_reader import ReasoningMemory
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.text.reasoning import ReasoningStart, split_reasoning
from rl_conductor.trace.events import AnswerDelta, Event
from rl_conductor.types import Completion, Delta, JsonFormat, ReasoningPart, TextPart, Usage

UNOPENED = ["We ", "add.\n", "</think>\n", "\n4", " it is."]
MENTION = "End it with </think>\nand go on."
ALONE = workflow(("a", "x", ()))


def declared(start: ReasoningStart) -> Capabilities:
    return Capabilities(tools=True, json_schema=True, reasoning_start=start)


async def streamed(pool: WorkerPool, question: str | Request = "q") -> list[str]:
    """The pieces in which the answer came; they must make up the text of the trace."""
    events: list[Event] = []
    trace = await Conductor(ScriptedModel([]), pool).run(question, workflow=ALONE, stream=True, on_event=events.append)
    pieces = [event.text for event in events if isinstance(event, AnswerDelta)]
    assert "".join(pieces) == trace.text
    return pieces


def whole(text: str, finish: str = "stop", **usage: int) -> Completion:
    return Completion.model_validate(
        {"message": Message.assistant(text), "usage": Usage(**usage), "finish_reason": finish, "model": "m"}
    )


# -------------------------------------------------------------------------------------------- runs


async def test_reasoning_is_kept_in_the_trace_apart_from_the_answer() -> None:
    pool = pool_of(a="<think>secret</think>The reply.", b="We add.\n</think>\nIt is 4.")
    steps = workflow(("a", "x", ()), ("b", "y", (0,)))
    trace = await Conductor(ScriptedModel([]), pool).run("q", workflow=steps)
    kept = [call.completion.message.content for call in trace.calls if call.completion]
    assert kept == [
        (ReasoningPart(text="secret"), TextPart(text="The reply.")),
        (ReasoningPart(text="We add."), TextPart(text="It is 4.")),
    ]
    assert trace.text == "It is 4."
    assert "secret" not in str([call.request for call in trace.calls])


async def test_a_model_that_is_declared_to_begin_in_reasoning_is_held_back_until_its_answer() -> None:
    model = ScriptedModel([UNOPENED], capabilities=declared("inside"))
    assert await streamed(pool_of(a=model)) == ["4", " it is."]


@pytest.mark.parametrize(
    "name",
    [
        "DeepSeek-R1",
        "Qwen3-4B-Thinking-2507",
        "QwQ-32B",
        "Qwen3.5-35B-A3B",
        "NVIDIA-Nemotron-Nano-9B-v2",
        "Step-3.7-Flash",
    ],
)
async def test_a_model_whose_name_says_that_its_template_opens_reasoning_is_held_back(name: str) -> None:
    assert await streamed(pool_of(a=ScriptedModel([UNOPENED], name=name))) == ["4", " it is."]


async def test_a_model_that_is_expected_to_reason_but_does_not_loses_no_text_and_is_streamed_from_then_on() -> None:
    pool = pool_of(a=ScriptedModel([["Hel", "lo."], ["Hel", "lo."]], name="QwQ-32B"))
    assert await streamed(pool) == ["Hello."]
    assert await streamed(pool) == ["Hel", "lo."]


async def test_what_one_reply_shows_of_a_model_holds_for_the_next() -> None:
    pool = pool_of(a=ScriptedModel([UNOPENED, UNOPENED, ["no ", "reasoning"], ["no ", "reasoning"]]))
    assert "".join(await streamed(pool)) == "".join(UNOPENED)  # nothing said that its template opens reasoning
    assert await streamed(pool) == ["4", " it is."]
    assert await streamed(pool) == ["no reasoning"]
    assert await streamed(pool) == ["no ", "reasoning"]


async def test_a_reply_that_was_not_streamed_shows_it_as_well() -> None:
    pool = pool_of(a=ScriptedModel(["".join(UNOPENED), UNOPENED]))
    assert (await Conductor(ScriptedModel([]), pool).run("q", workflow=ALONE)).text == "4 it is."
    assert await streamed(pool) == ["4", " it is."]


async def test_a_model_that_stops_to_reason_is_streamed_from_the_next_reply_on() -> None:
    pool = pool_of(a=ScriptedModel([UNOPENED, ["no ", "reasoning"], ["no ", "reasoning"]]))
    await streamed(pool)
    assert [await streamed(pool) for _ in range(2)] == [["no reasoning"], ["no ", "reasoning"]]


def test_a_reply_without_reasoning_changes_what_is_expected_of_the_next() -> None:
    memory = ReasoningMemory(start="inside")
    memory.observe("It is 4.", split_reasoning("It is 4."))
    assert memory.expected("unknown", "any-model", streamed=True) == "outside"


async def test_a_reply_that_is_held_to_a_form_shows_nothing() -> None:
    pool = pool_of(a=ScriptedModel(["{}", UNOPENED], name="QwQ-32B"))
    held = Request(messages=(Message.user("q"),), response_format=JsonFormat())
    assert await streamed(pool, held) == ["{}"]
    assert await streamed(pool) == ["4", " it is."]


async def test_an_answer_that_mentions_a_delimiter_keeps_its_text_where_replies_are_known_to_begin_outside() -> None:
    pool = pool_of(a=ScriptedModel(MENTION, capabilities=declared("outside")))
    assert (await Conductor(ScriptedModel([]), pool).run("q", workflow=ALONE)).text == MENTION
    assert "".join(await streamed(pool)) == MENTION


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_that_never_leaves_its_reasoning_is_a_failure_not_an_answer(stream: bool) -> None:
    model = ScriptedModel([Message.assistant("<think>secret, never closed")] * 3)
    events: list[Event] = []
    run = Conductor(ScriptedModel([]), pool_of(a=model), retries=0)
    with pytest.raises(RunError, match="ended after its reasoning, without an answer") as failed:
        await run.run("q", workflow=ALONE, stream=stream, on_event=events.append)
    assert "secret" not in str(failed.value)
    assert not [event for event in events if isinstance(event, AnswerDelta)]


@pytest.mark.parametrize("text", ["<think>never done", "never done"])
async def test_a_reply_that_ran_out_of_tokens_in_its_reasoning_is_retried_with_more_and_says_so(text: str) -> None:
    model = ScriptedModel([whole(text, "length"), whole(text, "length")], capabilities=declared("inside"))
    with pytest.raises(RunError, match="raise max_tokens"):
        await streamed(pool_of(a=model))
    first, second = (request.sampling.max_tokens or 0 for request in model.requests)
    assert second > first


async def test_a_truncated_answer_of_a_vendor_that_counts_reasoning_apart_is_an_answer() -> None:
    pool = pool_of(a=ScriptedModel([whole("It is", "length", reasoning_tokens=9)], name="QwQ-32B"))
    assert await streamed(pool) == ["It is"]


async def test_a_stream_that_fails_in_its_reasoning_is_tried_again() -> None:
    gone = ModelError("gone", model="a", retryable=True, retry_after=0.001)
    pool = pool_of(a=ScriptedModel([["<think>half ", gone], ["<think>whole</think>", "4"]]))
    assert await streamed(pool) == ["4"]


class Vendor(ScriptedModel):
    """Sends reasoning in a field of its own, before the text."""

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(reasoning="We add.")
        async for delta in super().stream(request):
            if delta.completion is not None:
                parts = (ReasoningPart(text="We add."), *delta.completion.message.content)
                message = delta.completion.message.model_copy(update={"content": parts})
                delta = Delta(completion=delta.completion.model_copy(update={"message": message}))  # noqa: PLW2901
            yield delta


async def test_a_vendor_that_sends_reasoning_apart_is_streamed_at_once_and_keeps_its_text() -> None:
    pool = pool_of(a=Vendor([["End it with </think>\n", "and go on."]] * 2, name="QwQ-32B"))
    assert await streamed(pool) == ["End it with </think>\n", "and go on."]
    assert (await Conductor(ScriptedModel([]), pool).run("q", workflow=ALONE)).text == MENTION


# ---------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("name", "streamed", "start"),
    [
        ("ollama:llama3", True, "outside"),
        ("ollama:llama3", False, "unknown"),
        ("vllm-server:deepseek-ai/DeepSeek-R1", True, "inside"),
        ("vllm-server:Qwen/Qwen3-4B-Thinking-2507", False, "inside"),
    ],
)
def test_a_model_is_expected_to_do_what_its_name_says(name: str, streamed: bool, start: ReasoningStart) -> None:
    assert ReasoningMemory().expected("unknown", name, streamed=streamed) == start


def test_what_is_declared_goes_before_what_was_observed_or_guessed() -> None:
    memory = ReasoningMemory("inside")
    assert memory.expected("outside", "deepseek-r1", streamed=True) == "outside"
    assert memory.expected("inside", "gpt-5", streamed=True) == "inside"


def test_a_reply_that_opens_its_reasoning_itself_says_nothing_of_the_template() -> None:
    memory = ReasoningMemory("inside")
    memory.observe("<think>a</think>b", split_reasoning("<think>a</think>b", start="inside"))
    assert memory.start == "inside"
