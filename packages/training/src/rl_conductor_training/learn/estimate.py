"""Estimates the calls, tokens, dollars and minutes of a learning run before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from rl_conductor.errors import ConfigError
from rl_conductor.integration import price_of
from rl_conductor.models import model
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.types import Price
from rl_conductor_training.learn.data import LearnData
from rl_conductor_training.learn.search.candidates import build_candidates, descriptions
from rl_conductor_training.learn.search.explore import PROPOSALS
from rl_conductor_training.learn.search.plan import MAX_WORKFLOWS, halving_rounds
from rl_conductor_training.spending import (
    DEFAULT_SECONDS,
    PROMPT_TOKENS,
    REPLY_TOKENS,
    CostEstimate,
    mean_latency,
    mean_price,
    mean_question_tokens,
)
from rl_conductor_training.tasks import Sample

PLANNER_TOKENS = 1_500
"""Expected tokens of a planner call, prompt and plan."""
VERDICTS = 2
"""Calls of a judge for each answer."""


def estimate_cost(data: LearnData, pool: WorkerPool, *, max_steps: int, seed: int, concurrency: int) -> CostEstimate:
    """Estimates a run that spends no more than the search needs; the caps may end it earlier."""
    train, validation, heldout = (len(task.samples) for task in (data.train, data.validation, data.heldout.task))
    candidates = build_candidates(descriptions(pool), (), max_steps=max_steps, seed=seed)
    mean_steps = sum(len(workflow.steps) for workflow in candidates) / len(candidates)
    workflow_runs, covered = 0, 0
    for size, count in halving_rounds(len(candidates), train):
        workflow_runs += (size + len(pool)) * (count - covered)
        covered = count
    workflow_runs += (MAX_WORKFLOWS + len(pool)) * (validation + heldout)
    planner_calls = PROPOSALS + 2 * heldout
    worker_calls = int(workflow_runs * mean_steps) + 2 * planner_calls
    calls = worker_calls + planner_calls
    input_tokens = PROMPT_TOKENS + REPLY_TOKENS // 2 + mean_question_tokens(data.train.samples)
    tokens = worker_calls * (input_tokens + REPLY_TOKENS) + planner_calls * PLANNER_TOKENS
    price = mean_price(pool, input_tokens)
    usd = None if price is None else price * calls
    minutes = calls * mean_latency(pool) / concurrency / 60
    estimate = CostEstimate(calls=calls, tokens=tokens, usd=usd, minutes=minutes)
    return _add_judge(estimate, data.task.samples, workflow_runs + 2 * heldout, concurrency)


def _add_judge(estimate: CostEstimate, samples: Sequence[Sample], runs: int, concurrency: int) -> CostEstimate:
    """Adds the verdicts of the judge on the answers of `runs`, if some questions have one."""
    judges = [str(sample.details["judge"]) for sample in samples if "judge" in sample.details]
    if not judges:
        return estimate
    calls = round(runs * len(judges) / len(samples) * VERDICTS)
    input_tokens = PROMPT_TOKENS + 2 * REPLY_TOKENS + mean_question_tokens(samples)
    price = _price_of(judges[0])
    is_priced = estimate.usd is not None and price is not None
    cost = price.max_cost(input_tokens=input_tokens, output_tokens=1) * calls if price else Decimal(0)
    return CostEstimate(
        calls=estimate.calls + calls,
        tokens=estimate.tokens + calls * input_tokens,
        usd=(estimate.usd or Decimal(0)) + cost if is_priced else None,
        minutes=estimate.minutes + calls * DEFAULT_SECONDS / concurrency / 60,
    )


def _price_of(judge: str) -> Price | None:
    """Returns the price of a judge by its name; a model that can't be made here has the price of the price table."""
    try:
        return model(judge).price
    except ConfigError:
        provider, _, name = judge.partition(":")
        return price_of(provider, name)


def add_search(estimate: CostEstimate, runs: int, seconds: float = 0.0) -> CostEstimate:
    """Adds the cost of the learners' own searches.

    Args:
        estimate: the estimate without them.
        runs: runs with a planner, each with a call for planning and reflection and two to workers.
        seconds: seconds of work without any call.
    """
    calls = runs * 3
    share = calls / estimate.calls
    return CostEstimate(
        calls=estimate.calls + calls,
        tokens=estimate.tokens + runs * PLANNER_TOKENS + round(estimate.tokens * share * 2 / 3),
        usd=None if estimate.usd is None else estimate.usd * (1 + Decimal(str(round(share, 6)))),
        minutes=estimate.minutes * (1 + share) + seconds / 60,
    )
