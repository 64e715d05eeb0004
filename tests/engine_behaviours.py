"""What every engine that runs in this process has to do, shown with random weights that say nothing sensible.

A test module subclasses `EngineBehaviours` and brings a fixture `engine`, used by every test on a loop of its own.
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

from rl_conductor.errors import BadRequestError, ContextLengthError, ModelTimeoutError
from rl_conductor.grammar import constraint
from rl_conductor.models import Model
from rl_conductor.parser import Form, parse
from rl_conductor.sync import run_sync
from rl_conductor.types import Completion, Grammar, JsonFormat, Message, Request, ResponseFormat, Sampling, Tool
from rl_conductor.workflow import PlanSpace

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
        roster=ROSTER, allowed=frozenset(ROSTER), min_steps=2, last=frozenset({"judge"}), last_reads_all=True, subtask_chars=30
    ),
    "flows closed": PlanSpace(
        roster=ROSTER,
        allowed=frozenset(ROSTER),
        max_steps=4,
        access="positional",
        unreadable=frozenset({("coder", "thinker"), ("judge", "writer")}),
        subtask_chars=30,
    ),
    "a later round": PlanSpace(
        roster=ROSTER, allowed=frozenset(ROSTER), recalled=frozenset({"coder"}), may_accept=True, subtask_chars=30
    ),
}

LISTS = 'root ::= "model_id = [" digit (", " digit){0,4} "]"\ndigit ::= [0-2]'


def asking(
    text: str = "What is 2 + 2?", *, form: ResponseFormat | None = None, timeout: float | None = None, **sampling: Any
) -> Request:
    """A request of one user message; greedy and 24 tokens unless told."""
    drawn = Sampling(**({"temperature": 0.0, "max_tokens": 24} | sampling))
    return Request(messages=(Message.user(text),), response_format=form, sampling=drawn, timeout=timeout)


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
        assert sum(bool(delta.text) for delta in deltas) > 4
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

    @pytest.mark.parametrize("seed", range(8))
    async def test_any_draw_fits_the_json_schema(self, engine: Model, seed: int) -> None:
        form = JsonFormat(json_schema=SCHEMA)
        reply = json.loads((await engine.complete(asking(form=form, temperature=1.0, seed=seed, max_tokens=300))).text)
        assert set(reply) == {"worker", "access"}
        assert reply["worker"] in ("coder", "writer")
        assert len(reply["access"]) <= 3

    @pytest.mark.parametrize("form", ["lists", "lines"])
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

    async def test_tools_are_refused_before_the_call(self, engine: Model) -> None:
        with pytest.raises(BadRequestError, match="tools"):
            await engine.complete(asking().model_copy(update={"tools": (Tool(name="search"),)}))

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


async def _all(calls: Iterable[Awaitable[Completion]]) -> list[Completion | BaseException]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def _answers_soon(engine: Model) -> None:
    """Answers in much less time than four endless replies take, even beside other work."""
    started = time.perf_counter()
    await engine.complete(asking(max_tokens=2))
    assert time.perf_counter() - started < 5
