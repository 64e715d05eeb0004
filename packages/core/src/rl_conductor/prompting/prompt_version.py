"""Hashes every prompt template, so that results measured with different prompts are never mixed up.

It covers the prompts of the planner and the workers. Text that a vendor's adapter or a delegating worker adds is not
included; it changes with their name or with the package version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from itertools import product
from typing import Any, get_args

from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.json_schema import plan_schema
from rl_conductor.prompting.plan_rules import MAX_TOOL_NAMES
from rl_conductor.prompting.planner_prompt import (
    REJECTED_PLAN_CHARS,
    REJECTION_REASON_CHARS,
    REPLY_BYTES,
    STEP_REPLY_BYTES,
    PreviousRound,
    PromptSettings,
    Rejection,
    planner_messages,
    rejection_messages,
)
from rl_conductor.prompting.request_inputs import HIDDEN_INPUTS, HIDDEN_TEXT
from rl_conductor.prompting.subtasks import ANSWER, VERIFY
from rl_conductor.prompting.transcript import LEFT_OUT, QUESTION_BYTES
from rl_conductor.prompting.worker_prompt import HIDDEN_ATTACHMENT, MAX_REPLY_CHARS, NO_REPLY, Evidence, worker_prompt
from rl_conductor.types import FREE, Card, FilePart, ImagePart, Message, Price, Roster, ToolCall, Wording
from rl_conductor.workflow.example import MAX_EXAMPLES
from rl_conductor.workflow.plan_space import AccessMode, AttachmentRule, PlanSpace

_EVIDENCE = Evidence(label="1", subtask="Look.", reply="Seen.", worker="a")


@cache
def prompt_version(*instructions: str) -> str:
    """Returns a hash of all prompt templates and of the user's own instructions, 12 hex digits; stored in traces.

    Args:
        instructions: those of the planner and of each worker; empty ones don't change the version.
    """
    texts = (*_prompts(), *filter(None, instructions))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _prompts() -> Iterator[str]:
    """Yields every prompt template at least once."""
    space = PlanSpace(roster=("a", "b", "c"), allowed=frozenset("abc"))
    with_inputs = space.model_copy(update={"inputs": ("turn 1", "image 1")})
    later = space.model_copy(update={"recallable": frozenset("a"), "may_accept": True})
    forms, rosters = get_args(Form), get_args(Roster)
    for form, access, roster in product(forms, get_args(AccessMode), rosters):
        yield from _planning(later.model_copy(update={"access": access}), form=form, roster=roster)
    for update, roster in product(_restrictions(), rosters):
        yield from _planning(space.model_copy(update=update), roster=roster)
    for form, roster in product(forms, rosters):
        yield from _planning(with_inputs, form=form, roster=roster)
    for form in forms:
        yield from _planning(later, form=form, wording="full")
    yield worker_prompt("What?", [_EVIDENCE], "Say it.", key="")
    for rejected in ("A plan.", ""):
        yield from (turn.text for turn in rejection_messages(Rejection(rejected, "It is bad."), key=""))
    chars = (
        REPLY_BYTES,
        STEP_REPLY_BYTES,
        REJECTED_PLAN_CHARS,
        REJECTION_REASON_CHARS,
        MAX_REPLY_CHARS,
        QUESTION_BYTES,
    )
    yield from (ANSWER, VERIFY, NO_REPLY, HIDDEN_ATTACHMENT, HIDDEN_INPUTS, HIDDEN_TEXT, LEFT_OUT, *map(str, chars))


def _restrictions() -> Iterator[dict[str, Any]]:
    """Yields the fields of plan spaces that add rules to the prompt."""
    yield {"max_steps": 1}
    yield {"last": frozenset("ab")}
    yield {"last": frozenset("b"), "last_reads_all": True, "min_steps": 2}
    yield {"tools": tuple(f"tool_{number}" for number in range(MAX_TOOL_NAMES + 1))}
    yield {"attachments": (AttachmentRule(kind="images", readers=frozenset("b")),)}


def _conversation() -> tuple[Message, ...]:
    return (
        Message.system("Be brief."),
        Message.user("What is it?", ImagePart(url="https://image"), FilePart(name="file.pdf", data="")),
        Message.assistant("I look.", tool_calls=[ToolCall(id="1", name="look", arguments="{}")]),
        Message.user("And now?"),
    )


def _cards() -> list[Card]:
    return [
        Card(name="a", description="A worker.", strengths="sums", accuracy={"math": 0.5}, price=FREE, latency=1.0),
        Card(name="b", price=Price(input=Decimal(1), output=Decimal(2), per_call=Decimal(3))),
        Card(name="c"),
    ]


def _planning(
    space: PlanSpace, *, form: Form = "lists", roster: Roster = "cards", wording: Wording = "brief"
) -> Iterator[str]:
    settings = PromptSettings(
        form=form,
        roster=roster,
        wording=wording,
        examples=MAX_EXAMPLES,
        instructions="Be quick.",
    )
    previous = PreviousRound(plan="", reply="It is.", steps=(_EVIDENCE,))
    messages = planner_messages(_conversation(), space, _cards(), settings, key="", previous_rounds=[previous])
    yield from (f"{message.role}: {message.text}" for message in messages)
    yield json.dumps(plan_schema(space))
