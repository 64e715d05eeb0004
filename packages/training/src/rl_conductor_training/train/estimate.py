"""Estimates the calls, tokens, dollars and minutes of a training run, before it and from its measured steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.scoring import Sample
from rl_conductor_training.spending import (
    DEFAULT_SECONDS,
    PROMPT_TOKENS,
    CostEstimate,
    mean_question_tokens,
)
from rl_conductor_training.train.config import TrainConfig

REPLY_TOKENS = 200
"""Expected tokens of a reply."""


def estimate_training(
    config: TrainConfig, pool: WorkerPool, samples: Sequence[Sample], *, validation_questions: int
) -> CostEstimate:
    """Estimates the calls to workers of a whole run, as if no reply was cached.

    The length of plans is unknown before the first step, so it is taken to be the mean of those that are allowed, and
    each question is taken to have a demonstration and only wrong plans of others. The minutes are those of the workers
    only.
    """
    steps_per_plan = (1 + config.plan.max_steps) / 2
    plans = config.grpo.steps * config.plans_per_step + count_validation_plans(config, validation_questions)
    warm_start = config.warm_start
    if warm_start and warm_start.plans is None:
        plans += warm_start.questions * warm_start.samples
    if warm_start and warm_start.second_rounds:
        plans += len(samples) * (1 + warm_start.second_rounds * (1 + round(steps_per_plan)))
    calls = round(plans * steps_per_plan)
    earlier_replies = (steps_per_plan - 1) / 2
    input_tokens = PROMPT_TOKENS + mean_question_tokens(samples) + round(REPLY_TOKENS * earlier_replies)
    price = _mean_price(pool, input_tokens)
    # Plans run at the same time, the steps of a plan mostly one after the other.
    seconds = calls * _mean_latency(pool) / min(config.concurrency, config.plans_per_step)
    return CostEstimate(
        calls=calls,
        tokens=calls * (input_tokens + REPLY_TOKENS),
        usd=None if price is None else price * calls,
        minutes=seconds / 60,
    )


def count_validation_plans(config: TrainConfig, questions: int) -> int:
    """Counts the validation plans of a whole run."""
    if config.validation is None:
        return 0
    evaluations = 1 + -(-config.grpo.steps // config.validation.every)
    return evaluations * questions * config.validation.rollouts


def project_training(config: TrainConfig, steps: Sequence[Mapping[str, float]]) -> CostEstimate:
    """Projects the cost of all steps of a run, without validation, from the metrics of at least one step.

    Cached replies count with their original usage, so the spending may be lower. The dollars are unknown if those of a
    step are.
    """
    means = {
        name: sum(step.get(name, 0.0) for step in steps) / len(steps)
        for name in ("calls", "tokens", "usd", "step_time")
    }
    return CostEstimate(
        calls=round(means["calls"] * config.grpo.steps),
        tokens=round(means["tokens"] * config.grpo.steps),
        usd=Decimal(str(round(means["usd"] * config.grpo.steps, 6))) if all("usd" in step for step in steps) else None,
        minutes=means["step_time"] * config.grpo.steps / 60,
    )


def _mean_price(pool: WorkerPool, input_tokens: int) -> Decimal | None:
    """Computes the mean price in US dollars of a call with this input; `None` if a worker has no price."""
    prices = [_price(worker, input_tokens) for worker in pool.values()]
    return None if None in prices else sum(filter(None, prices), Decimal(0)) / len(prices)


def _mean_latency(pool: WorkerPool) -> float:
    """Computes the mean seconds of a call."""
    seconds = [worker.card.latency or DEFAULT_SECONDS for worker in pool.values()]
    return sum(seconds) / len(seconds)


def _price(worker: Worker, input_tokens: int) -> Decimal | None:
    price = worker.card.price
    return None if price is None else price.max_cost(input_tokens=input_tokens, output_tokens=REPLY_TOKENS)
