"""A plan as a stream: its steps as they are written, and the whole plan at its end.

Every plan has this form, wherever it comes from; one that is not written by the planner is whole at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from rl_conductor.calls.budget import FollowUp
from rl_conductor.calls.context import RunContext
from rl_conductor.prompting.planner_prompt import PreviousRound
from rl_conductor.trace.events import PlanRejected
from rl_conductor.trace.trace import Call, PlanRecord
from rl_conductor.types import Card, Message
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step


@dataclass(frozen=True)
class ReadyStep:
    """A step other than the last, complete and allowed, of a plan that is still being written."""

    index: int
    step: Step


PlanItem = ReadyStep | PlanRejected | PlanRecord
"""An item of a plan stream. `PlanRejected` takes back the steps so far; the last item is always a `PlanRecord`."""

PlanStream = AsyncGenerator[PlanItem, None]


async def read_plan(stream: PlanStream) -> PlanRecord:
    """Reads a plan stream to its end, without starting any step, and returns the record."""
    record: PlanRecord | None = None
    async with aclosing(stream) as items:
        async for item in items:
            if isinstance(item, PlanRecord):
                record = item
    assert record is not None
    return record


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The input of a planner, and the lists to which it appends its calls and errors."""

    run: RunContext
    conversation: Sequence[Message]
    space: PlanSpace
    cards: Sequence[Card]
    round_index: int = 0
    """Index of the round, from 0."""
    previous_rounds: Sequence[PreviousRound] = ()
    """Plans and answers of the previous rounds, oldest first."""
    follow_up: FollowUp | None = None
    """The smallest call of a worker that may answer after the plan; nothing is planned if the limits don't leave it."""
    calls: list[Call] = field(default_factory=list)
    """Output: every model call, appended as it is made, so that none is lost when planning is cancelled."""
    errors: list[str] = field(default_factory=list)
    """Output: why each rejected plan was rejected."""
