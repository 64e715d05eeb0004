"""The reasoning of the worker that answers is streamed before its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from core.runs import ACCEPT, plan
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RateLimitError
from rl_conductor.models.base import Capabilities, Model, OnePieceModel
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.events import AnswerDelta, Event, ReasoningDelta
from rl_conductor.types import FREE, Completion, Delta, Message, ReasoningPart, Request, TextPart
from rl_conductor.workflow.limits import Limits

ONE = plan((0, "answer", []))
QUESTION = Request.user("What is it?")
REPLY = Message(role="assistant", content=(ReasoningPart(text="hm "), ReasoningPart(text="hm"), TextPart(text="1 2 3")))
WHOLE = Completion(message=REPLY, model="m")


def conductor(worker: Any, rounds: int = 1) -> Conductor:
    plans = [ONE, ACCEPT] if rounds == 2 else [ONE]
    return Conductor(ScriptedModel(plans), {"a": worker}, limits=Limits(rounds=rounds))


async def pieces_of(made: Conductor) -> list[Event]:
    events = [event async for event in made.events(QUESTION)]
    return [event for event in events if isinstance(event, ReasoningDelta | AnswerDelta)]


class OnePiece(OnePieceModel):
    """Knows its reply only when it is complete."""

    name, capabilities, price = "m", Capabilities(), FREE

    async def complete(self, request: Request) -> Completion:
        return WHOLE


@pytest.mark.parametrize("rounds", [1, 2], ids=["streamed", "held back for a second round"])
@pytest.mark.parametrize(
    "worker",
    [ScriptedModel(lambda _: WHOLE), OnePiece(), ScriptedModel(lambda _: "<think>hm hm</think>1 2 3")],
    ids=["apart", "one piece", "in the text"],
)
async def test_reasoning_comes_before_the_text(worker: Model, rounds: int) -> None:
    reasoning, *answer = await pieces_of(conductor(worker, rounds))
    assert reasoning == ReasoningDelta(text="hm hm")
    assert "".join(piece.text for piece in answer if isinstance(piece, AnswerDelta)) == "1 2 3"


class BreaksOff(ScriptedModel):
    """Thinks before every reply or failure."""

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(reasoning="hm ")
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                yield delta


async def test_a_call_that_fails_after_its_reasoning_is_retried() -> None:
    worker = BreaksOff([RateLimitError("later", model="a", retry_after=0.001), "fine"])
    assert await pieces_of(conductor(worker)) == [
        ReasoningDelta(text="hm "),
        ReasoningDelta(text="hm "),
        AnswerDelta(text="fine"),
    ]


async def test_a_conductor_that_is_a_worker_streams_the_reasoning_too() -> None:
    reasoning, *answer = await pieces_of(conductor(conductor(ScriptedModel([WHOLE]))))
    assert reasoning == ReasoningDelta(text="hm hm")
    assert all(isinstance(piece, AnswerDelta) for piece in answer)
