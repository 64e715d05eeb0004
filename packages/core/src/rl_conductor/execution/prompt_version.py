"""The version of what a run tells models, so that measurements of one wording are never taken for those of another.

It covers what the planner and the workers are told. What a vendor's adapter or a worker with a base model of its own
adds is theirs, and changes with their name or the package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from itertools import product
from typing import get_args

from rl_conductor.execution.executor import NO_REPLY
from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.json_schema import plan_schema
from rl_conductor.planning.fallback import ANSWER, VERIFY
from rl_conductor.planning.prompts import (
    EXAMPLES,
    REJECTED_PLAN_CHARS,
    REJECTION_REASON_CHARS,
    REPLY_CHARS,
    Evidence,
    Rejection,
    Review,
    planner_messages,
    rejection_messages,
    worker_prompt,
)
from rl_conductor.types import FREE, Card, FilePart, ImagePart, Message, Price, Roster, ToolCall
from rl_conductor.workflow.workflow import AccessMode, PlanSpace

_CARDS = (
    Card(name="a", description="A worker.", strengths="sums", accuracy={"math": 0.5}, price=FREE, latency=1.0),
    Card(name="b", price=Price(input=Decimal(1), output=Decimal(2), per_call=Decimal(3))),
    Card(name="c"),
)
_SPACE = PlanSpace(roster=("a", "b", "c"), allowed=frozenset("abc"))
_SPACES = (
    _SPACE.model_copy(update={"max_steps": 1}),
    _SPACE.model_copy(update={"last": frozenset("ab")}),
    _SPACE.model_copy(update={"last": frozenset("b"), "last_reads_all": True, "min_steps": 2}),
)
_LATER = _SPACE.model_copy(update={"recalled": frozenset("a"), "may_accept": True})
_CONVERSATION = (
    Message.system("Be brief."),
    Message.user("What is it?", ImagePart(url="https://image"), FilePart(name="file.pdf", data="")),
    Message.assistant("I look.", tool_calls=[ToolCall(id="1", name="look", arguments="{}")]),
    Message.user("And now?"),
)


@cache
def wording_version() -> str:
    """Changes whenever anything that a run tells models changes: 12 hex digits."""
    return hashlib.sha256("\0".join(_told()).encode()).hexdigest()[:12]


def _told() -> Iterator[str]:
    """Everything that may be told, each of it at least once."""
    for form, access in product(get_args(Form), get_args(AccessMode)):
        yield from _planning(_LATER.model_copy(update={"access": access}), form=form)
    for space in _SPACES:
        yield from _planning(space)
    for roster in get_args(Roster):
        yield from _planning(_LATER, roster=roster)
    yield worker_prompt("What?", [Evidence(label="1", subtask="Look.", reply="Seen.")], "Say it.", key="")
    for rejected in ("A plan.", ""):
        yield from (turn.text for turn in rejection_messages(Rejection(rejected, "It is bad."), key=""))
    yield from (ANSWER, VERIFY, NO_REPLY, *map(str, (REPLY_CHARS, REJECTED_PLAN_CHARS, REJECTION_REASON_CHARS)))


def _planning(space: PlanSpace, *, form: Form = "lists", roster: Roster = "cards") -> Iterator[str]:
    messages = planner_messages(
        _CONVERSATION,
        space,
        _CARDS,
        key="",
        form=form,
        roster=roster,
        examples=len(EXAMPLES),
        reviews=[Review(plan="", reply="It is.")],
    )
    yield from (f"{message.role}: {message.text}" for message in messages)
    yield json.dumps(plan_schema(space))
