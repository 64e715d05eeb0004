"""Behaviour of every engine in this process, shown with random weights, whose texts make no sense.

A test module subclasses what applies and brings a fixture `engine`, used by every test on a loop of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Iterable
from contextlib import aclosing
from typing import Any

import pytest

from rl_conductor._internal.sync import run_sync
from rl_conductor.errors import BadRequestError, BadResponseError, ContextLengthError, ModelTimeoutError
from rl_conductor.models import Model
from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.plan_text.parser import parse
from rl_conductor.types import (
    Completion,
    Grammar,
    ImagePart,
    JsonFormat,
    Message,
    Request,
    ResponseFormat,
    Sampling,
    Tool,
)
from rl_conductor.workflow.plan_space import PlanSpace

SCHEMA = {
    "type": "object",
    "properties": {
        "worker": {"enum": ["coder", "writer"]},
        "access": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["worker", "access"],
    "additionalProperties": False,
}

ROSTER = ("coder", "writer", "thinker", "judge")

SPACES = {
    "a worker denied": PlanSpace(roster=ROSTER, allowed=frozenset(ROSTER) - {"writer"}, subtask_chars=30),
    "a verifier forced": PlanSpace(
        roster=ROSTER,
        allowed=frozenset(ROSTER),
        min_steps=2,
        last=frozenset({"judge"}),
        last_reads_all=True,
        subtask_chars=30,
    ),
    "flows closed": PlanSpace(
        roster=ROSTER,
        allowed=frozenset(ROSTER),
        max_steps=4,
        access="positional",
        forbidden_flows=frozenset({("coder", "thinker"), ("judge", "writer")}),
        subtask_chars=30,
    ),
    "a later round": PlanSpace(
        roster=ROSTER, allowed=frozenset(ROSTER), recallable=frozenset({"coder"}), may_accept=True, subtask_chars=30
    ),
}

LISTS = 'root ::= "model_id = [" digit (", " digit){0,4} "]"\ndigit ::= [0-2]'


def asking(
    text: str = "What is 2 + 2?", *, form: ResponseFormat | None = None, timeout: float | None = None, **sampling: Any
) -> Request:
    """A request of one user message; greedy and 24 tokens unless told."""
    drawn = Sampling(**({"temperature": 0.0, "max_tokens": 24} | sampling))
    return Request(messages=(Message.user(text),), response_format=form, sampling=drawn, timeout=timeout)


ASSIGN = Tool(name="assign", description="Gives the work to a worker.", parameters=SCHEMA)
ACCEPT = Tool(name="accept")
CALL = '<tool_call>{"name": "assign", "arguments": {"worker": "coder", "access": [1]}}</tool_call>'


def offering(choice: str = "auto", *, says: str = "", **options: Any) -> Request:
    """A request with two tools; `says`: the grammar leaves the model nothing else to say."""
    form = Grammar(gbnf=f"root ::= {json.dumps(says)}") if says else None
    request = asking(**({"form": form, "max_tokens": 300} | options))
    return request.model_copy(update={"tools": (ASSIGN, ACCEPT), "tool_choice": choice})


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4n"
RED = ImagePart(data=f"{PNG}GP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
BLUE = ImagePart(data=f"{PNG}GNgYPgPAAEDAQAIicLsAAAAAElFTkSuQmCC")

ENDLESS = asking("Go on and on.", max_tokens=4000, form=Grammar(gbnf="root ::= [a-z] root"))


class EngineBehaviours:
    async def test_a_reply_says_what_it_used_and_why_it_ended(self, engine: Model) -> None:
        reply = await engine.complete(asking(max_tokens=9))
        assert reply.text
        assert reply.finish_reason == "length"
        assert reply.usage.output_tokens == 9
        assert reply.usage.input_tokens > 8
        assert (reply.usage.calls, reply.usage.unpriced_calls) == (1, 0)
        assert reply.usage.cost == 0
        assert reply.model == engine.name

    async def test_the_stream_is_the_reply_in_pieces(self, engine: Model) -> None:
        deltas = [delta async for delta in engine.stream(asking())]
        streamed = deltas[-1].completion
        assert streamed is not None
        assert sum(bool(delta.text) for delta in deltas) > 1  # a busy engine joins pieces
        assert "".join(delta.text for delta in deltas) == streamed.text
        assert streamed.text == (await engine.complete(asking())).text

    async def test_a_reply_ends_before_a_stop_string(self, engine: Model) -> None:
        form = Grammar(gbnf='root ::= "first, second, third" [a-z]{100}')
        reply = await engine.complete(asking(form=form, stop=("third", "nd, t"), max_tokens=60))
        assert reply.text == "first, seco"
        assert reply.finish_reason == "stop"

    async def test_a_seed_repeats_a_draw(self, engine: Model) -> None:
        first, again, other = [(await engine.complete(asking(temperature=1.0, seed=seed))).text for seed in (7, 7, 8)]
        assert first == again != other

    @pytest.mark.parametrize("seed", range(8))
    async def test_any_draw_is_in_the_language_of_the_grammar(self, engine: Model, seed: int) -> None:
        reply = await engine.complete(asking(form=Grammar(gbnf=LISTS), temperature=1.0, seed=seed, max_tokens=100))
        assert re.fullmatch(r"model_id = \[[0-2](, [0-2]){0,4}\]", reply.text)
        assert reply.finish_reason == "stop"

    async def test_a_model_is_told_the_schema_that_it_is_held_to(self, engine: Model) -> None:
        free = await engine.complete(asking("Who?"))
        held = await engine.complete(asking("Who?", form=JsonFormat(json_schema=SCHEMA), max_tokens=100))
        assert held.usage.input_tokens > free.usage.input_tokens + 20

    @pytest.mark.parametrize("seed", range(8))
    async def test_any_draw_fits_the_json_schema(self, engine: Model, seed: int) -> None:
        form = JsonFormat(json_schema=SCHEMA)
        reply = json.loads((await engine.complete(asking(form=form, temperature=1.0, seed=seed, max_tokens=300))).text)
        assert set(reply) == {"worker", "access"}
        assert reply["worker"] in ("coder", "writer")
        assert len(reply["access"]) <= 3

    @pytest.mark.parametrize("seed", range(8))
    async def test_what_a_special_token_is_called_stays_in_the_text(self, engine: Model, seed: int) -> None:
        form = Grammar(gbnf='root ::= "so<|im_start|>on"')
        reply = await engine.complete(asking(form=form, temperature=1.0, seed=seed, max_tokens=40))
        assert reply.text == "so<|im_start|>on"

    @pytest.mark.parametrize("form", ["lists", "rows"])
    @pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
    async def test_every_plan_of_random_weights_is_allowed(self, engine: Model, space: PlanSpace, form: Form) -> None:
        request = asking(form=constraint(space, form, reasoning_chars=30), temperature=1.0, max_tokens=1200)
        for reply in await asyncio.gather(*(engine.complete(request) for _ in range(4))):
            assert reply.finish_reason == "stop"
            parse(reply.text, space, form=form, repair=False)

    async def test_a_narrow_top_p_stays_in_the_grammar(self, engine: Model) -> None:
        form = Grammar(gbnf=LISTS)
        reply = await engine.complete(asking(form=form, temperature=1.0, top_p=0.05, max_tokens=100))
        assert reply.text.startswith("model_id = [")

    async def test_a_grammar_that_is_none_is_refused(self, engine: Model) -> None:
        with pytest.raises(BadRequestError):
            await engine.complete(asking(form=Grammar(gbnf="root ::= missing")))

    async def test_images_are_refused_by_what_reads_text(self, engine: Model) -> None:
        with pytest.raises(BadRequestError, match="images"):
            await engine.complete(Request(messages=(Message.user("What is it?", RED),)))

    async def test_a_conversation_that_is_too_long_is_named_as_such(self, engine: Model) -> None:
        with pytest.raises(ContextLengthError, match="tokens long"):
            await engine.complete(asking("word " * 5000))

    async def test_a_timeout_stops_the_generation(self, engine: Model) -> None:
        await engine.complete(asking())
        ends = await _all(engine.complete(ENDLESS.model_copy(update={"timeout": 0.3})) for _ in range(4))
        assert all(isinstance(end, ModelTimeoutError) for end in ends)
        await _answers_soon(engine)

    async def test_cancelling_stops_the_generation(self, engine: Model) -> None:
        calls = [asyncio.create_task(engine.complete(ENDLESS)) for _ in range(4)]
        await asyncio.sleep(0.3)
        for call in calls:
            call.cancel()
        assert all(isinstance(end, asyncio.CancelledError) for end in await _all(calls))
        await _answers_soon(engine)

    async def test_leaving_a_stream_stops_the_generation(self, engine: Model) -> None:
        for _ in range(4):
            async with aclosing(engine.stream(ENDLESS)) as deltas:
                await anext(deltas)
        await _answers_soon(engine)

    async def test_concurrent_requests_each_get_their_own_answer(self, engine: Model) -> None:
        forms = [Grammar(gbnf=f'root ::= "{number}: " [a-z]{{5,9}}') for number in range(8)]
        replies = await asyncio.gather(*(engine.complete(asking(form=form, temperature=1.0)) for form in forms))
        for number, reply in enumerate(replies):
            assert re.fullmatch(rf"{number}: [a-z]{{5,9}}", reply.text)

    async def test_two_event_loops_can_share_it(self, engine: Model) -> None:
        elsewhere = asyncio.to_thread(run_sync, engine.complete(asking()))
        here, there = await asyncio.gather(engine.complete(asking()), elsewhere)
        assert here.finish_reason == there.finish_reason == "length"

    async def test_a_user_cannot_forge_a_turn(self, engine: Model) -> None:
        honest = await engine.complete(asking("im_end", max_tokens=1))
        forged = await engine.complete(asking("<|im_end|>", max_tokens=1))
        assert forged.usage.input_tokens > honest.usage.input_tokens


class CallingBehaviours:
    """The same for an `engine` whose template knows tools."""

    async def test_tools_are_told_unless_none_may_be_called(self, engine: Model) -> None:
        plain, auto, none = [
            (await engine.complete(request)).usage.input_tokens
            for request in (asking(), offering(max_tokens=24), offering("none", max_tokens=24))
        ]
        assert auto > plain == none

    async def test_calls_are_read_and_their_marks_not_shown(self, engine: Model) -> None:
        request = offering(says=f"Let us see. {CALL}{CALL}")
        deltas = [delta async for delta in engine.stream(request)]
        reply = deltas[-1].completion
        assert reply is not None
        assert "".join(delta.text for delta in deltas) == reply.text == "Let us see. "
        assert sum(bool(delta.text) for delta in deltas) > 1
        assert reply.finish_reason == "tool_calls"
        assert [call.name for call in reply.message.tool_calls] == ["assign", "assign"]
        assert json.loads(reply.message.tool_calls[0].arguments) == {"worker": "coder", "access": [1]}

    async def test_a_call_that_cannot_be_read_is_a_bad_response(self, engine: Model) -> None:
        with pytest.raises(BadResponseError, match="made no valid call"):
            await engine.complete(offering(says=CALL.replace("assign", "resign")))
        with pytest.raises(BadResponseError, match="raise max_tokens"):
            await engine.complete(offering(says=CALL, max_tokens=12))
        with pytest.raises(BadResponseError, match="raise max_tokens"):
            await engine.complete(offering("required", max_tokens=2))

    @pytest.mark.parametrize("seed", range(8))
    async def test_any_draw_of_what_must_call_fits_the_tools(self, engine: Model, seed: int) -> None:
        reply = await engine.complete(offering("required", temperature=1.0, seed=seed))
        [call] = reply.message.tool_calls
        assert (reply.text, reply.finish_reason) == ("", "tool_calls")
        arguments = json.loads(call.arguments)
        assert call.name == "accept" or arguments["worker"] in ("coder", "writer")

    @pytest.mark.parametrize("name", ["assign", "accept"])
    async def test_the_tool_that_is_named_is_called(self, engine: Model, name: str) -> None:
        replies = await asyncio.gather(*(engine.complete(offering(name, temperature=1.0)) for _ in range(4)))
        assert {call.name for reply in replies for call in reply.message.tool_calls} == {name}

    async def test_the_result_of_a_call_is_read(self, engine: Model) -> None:
        called = (await engine.complete(offering("assign"))).message
        result = Message.tool(called.tool_calls[0].id, "Done.")
        shorter, longer = [
            await engine.complete(asking().model_copy(update={"messages": (Message.user("Go."), *rest)}))
            for rest in ((called,), (called, result))
        ]
        assert longer.usage.input_tokens > shorter.usage.input_tokens


class SeeingBehaviours:
    """The same for a vision-language model without tools, by a fixture `seeing`."""

    async def test_an_image_changes_what_is_said(self, seeing: Model) -> None:
        red, blue, again = [await seeing.complete(showing(image)) for image in (RED, BLUE, RED)]
        assert red.text == again.text != blue.text
        assert red.usage.input_tokens == blue.usage.input_tokens

    async def test_an_image_is_read_as_tokens(self, seeing: Model) -> None:
        without, one, two = [await seeing.complete(showing(*images)) for images in ((), (RED,), (RED, BLUE))]
        each = one.usage.input_tokens - without.usage.input_tokens
        assert each >= 4
        assert two.usage.input_tokens - one.usage.input_tokens == each

    async def test_what_is_seen_can_be_told_in_a_form(self, seeing: Model) -> None:
        reply = await seeing.complete(showing(RED, form=JsonFormat(json_schema=SCHEMA), max_tokens=300))
        assert set(json.loads(reply.text)) == {"worker", "access"}

    async def test_an_image_cannot_be_forged_in_words(self, seeing: Model) -> None:
        assert (await seeing.complete(asking("<image>"))).text

    @pytest.mark.parametrize("data", ["", "no base64", "iVBORw0KGgo=", str(RED.data)[:60]])
    async def test_what_is_no_image_is_a_bad_request(self, seeing: Model, data: str) -> None:
        with pytest.raises(BadRequestError, match="decoded"):
            await seeing.complete(showing(ImagePart(data=data)))

    async def test_an_image_is_not_fetched(self, seeing: Model) -> None:
        with pytest.raises(BadRequestError, match="pass the content in `data`"):
            await seeing.complete(showing(ImagePart(url="https://example.com/cat.png")))

    async def test_a_template_without_tools_says_so(self, seeing: Model) -> None:
        assert seeing.capabilities.names == {"images", "json_schema", "array_bounds", "grammar"}
        with pytest.raises(BadRequestError, match="can't take tools"):
            await seeing.complete(offering())


def showing(*images: ImagePart, **options: Any) -> Request:
    """A request of a text and images."""
    return asking(**options).model_copy(update={"messages": (Message.user("What is it?", *images),)})


async def _all(calls: Iterable[Awaitable[Completion]]) -> list[Completion | BaseException]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def _answers_soon(engine: Model) -> None:
    """Answers in much less time than four endless replies take, even beside other work."""
    started = time.perf_counter()
    await engine.complete(asking(max_tokens=2))
    assert time.perf_counter() - started < 15


class ThinkingBehaviours:
    """With a chat template that opens the thought with which a reply begins; fixture `thinking`."""

    async def test_the_reply_begins_with_the_thought(self, thinking: Model) -> None:
        deltas = [delta async for delta in thinking.stream(asking())]
        reply = deltas[-1].completion
        assert reply is not None
        assert "".join(delta.text for delta in deltas) == reply.text
        assert reply.text.startswith("<think>")

    async def test_a_reply_that_is_held_to_a_form_has_no_thought(self, thinking: Model) -> None:
        reply = await thinking.complete(asking(form=JsonFormat(json_schema=SCHEMA), max_tokens=300))
        assert json.loads(reply.text)["worker"] in ("coder", "writer")
