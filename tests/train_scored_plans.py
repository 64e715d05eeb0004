"""Outcomes to hold rewards and step_metrics against."""

from __future__ import annotations

from decimal import Decimal

from rl_conductor.types import Usage
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.train.rollouts.scoring import ScoredPlan


def scored_plan(
    score: float | None,
    *,
    workers: str = "a",
    usd: str = "0",
    tokens: int = 0,
    seconds: float = 0.0,
    calls: int = 1,
    unpriced: int = 0,
) -> ScoredPlan:
    """A scored plan with a step for each letter of `workers`."""
    return ScoredPlan(
        text="a plan",
        workflow=Workflow(steps=tuple(Step(subtask="do it", worker=name) for name in workers)),
        score=score,
        usage=Usage(input_tokens=tokens, cost=Decimal(usd), calls=calls, unpriced_calls=unpriced),
        seconds=seconds,
    )


RIGHT, WRONG, FAILED = scored_plan(1.0), scored_plan(0.0), scored_plan(None)
INVALID = ScoredPlan(text="no plan", explanation="it is not spelled as one")
