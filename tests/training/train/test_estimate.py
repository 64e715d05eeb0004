from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from rl_conductor import ScriptedModel, Worker, WorkerPool
from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample
from rl_conductor.types import Card, Price
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.spending import DEFAULT_SECONDS, PROMPT_TOKENS, check_prices
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.estimate import (
    REPLY_TOKENS,
    count_validation_plans,
    estimate_training,
    project_training,
)

BASE: dict[str, Any] = {
    "model": "m",
    "task": {"name": "composite:train"},
    "pool": {"small": {}},
    "plan": {"max_steps": 3},
    "grpo": {"steps": 10, "questions": 2, "rollouts": 4},
}
SAMPLES = [Sample(id="1", question="x" * 400)]
VALIDATION = {"task": {"name": "composite:heldout"}, "every": 4, "rollouts": 2}


def config(**changed: Any) -> TrainConfig:
    return TrainConfig.model_validate(BASE | changed)


def pool(*prices: str | None) -> WorkerPool:
    """A worker for each price of a million input tokens; output tokens cost twice as much."""
    cards = [
        Card(name=f"worker-{number}", price=price and Price(input=Decimal(price), output=2 * Decimal(price)))
        for number, price in enumerate(prices)
    ]
    return WorkerPool(Worker.of(card.name, ScriptedModel("a", price=None), card=card) for card in cards)


def test_the_estimate_covers_all_steps_validation_and_the_warm_start() -> None:
    plain = estimate_training(config(), pool("1", "3"), SAMPLES, validation_questions=0)
    assert plain.calls == 10 * 2 * 4 * 2  # two steps per plan
    input_tokens = PROMPT_TOKENS + 100 + REPLY_TOKENS // 2
    assert plain.tokens == plain.calls * (input_tokens + REPLY_TOKENS)
    assert plain.usd == plain.calls * Decimal(2) * (input_tokens + 2 * REPLY_TOKENS) / 1_000_000
    assert plain.minutes == plain.calls * DEFAULT_SECONDS / 8 / 60
    validated = estimate_training(config(validation=VALIDATION), pool("1"), SAMPLES, validation_questions=5)
    assert validated.calls - plain.calls == 2 * 4 * 5 * 2  # after steps 0, 4, 8 and 10
    warm = config(warm_start={"questions": 6, "samples": 3})
    assert estimate_training(warm, pool("1"), SAMPLES, validation_questions=0).calls - plain.calls == 2 * 18
    recursive = config(recursion={"share": 1.0}, warm_start={"questions": 6, "samples": 3})
    both_rounds = config(recursion={"share": 1.0}, warm_start={"questions": 6, "samples": 3, "second_rounds": 2})
    without, with_second_rounds = (
        estimate_training(each, pool("1"), SAMPLES, validation_questions=0).calls for each in (recursive, both_rounds)
    )
    # For each question: its own plan, two others, and after each of these the own plan or its last step.
    assert with_second_rounds - without == 2 * len(SAMPLES) * (1 + 2 + 2 * 2)


def test_validation_plans_are_counted_for_each_evaluation() -> None:
    assert count_validation_plans(config(), 5) == 0
    every_two = VALIDATION | {"every": 2}
    assert count_validation_plans(config(validation=every_two), 1) == 2 * 6  # after steps 0, 2, ..., 10


def test_a_worker_without_a_price_makes_the_dollars_unknown() -> None:
    assert estimate_training(config(), pool("1", None), SAMPLES, validation_questions=0).usd is None


def test_measured_steps_give_the_cost_of_the_whole_run() -> None:
    steps = [
        {"calls": 10.0, "tokens": 1_000.0, "usd": 0.01, "step_time": 60.0},
        {"calls": 30.0, "tokens": 3_000.0, "usd": 0.03, "step_time": 180.0},
    ]
    projected = project_training(config(), steps)
    assert (projected.calls, projected.tokens, projected.usd) == (200, 20_000, Decimal("0.2"))
    assert projected.minutes == 20


def test_the_projected_dollars_are_unknown_if_those_of_a_step_are() -> None:
    steps = [{"calls": 1.0, "usd": 0.0, "step_time": 1.0}, {"calls": 9.0, "step_time": 1.0}]
    assert project_training(config(), steps).usd is None


def test_a_cap_in_dollars_needs_the_price_of_every_worker() -> None:
    check_prices(pool("1", "0"), Limits(usd=1))
    check_prices(pool("1", None), Limits(tokens=1))
    with pytest.raises(ConfigError, match='worker \'worker-1\' is unknown; write "price" with "input"'):
        check_prices(pool("1", None), Limits(usd=1))
