"""Outcomes to hold rewards and diagnostics against."""

from __future__ import annotations

from decimal import Decimal

from rl_conductor.train.outcomes import Outcome
from rl_conductor.types import Usage
from rl_conductor.workflow import Step, Workflow


def outcome(
    score: float | None,
    *,
    workers: str = "a",
    usd: str = "0",
    tokens: int = 0,
    seconds: float = 0.0,
    calls: int = 1,
    unpriced: int = 0,
) -> Outcome:
    """What came of a plan with a step for each letter of `workers`."""
    return Outcome(
        text="a plan",
        workflow=Workflow(steps=tuple(Step(subtask="do it", worker=name) for name in workers)),
        score=score,
        usage=Usage(input_tokens=tokens, cost=Decimal(usd), calls=calls, unpriced_calls=unpriced),
        seconds=seconds,
    )


RIGHT, WRONG, FAILED = outcome(1.0), outcome(0.0), outcome(None)
INVALID = Outcome(text="no plan", explanation="it is not spelled as one")
