from __future__ import annotations

import re
from typing import Any

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.rollouts.batches import count_rounds, split_plans


def config(**changed: Any) -> TrainConfig:
    defaults = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}}
    return TrainConfig.model_validate(defaults | changed)


def test_without_recursion_every_question_has_one_round() -> None:
    plain = config()
    assert (plain.second_round_questions, plain.plans_per_step) == (0, 256)
    assert {count_rounds(plain, number) for number in range(20)} == {1}


def test_a_second_round_adds_a_group_to_its_question() -> None:
    half = config(recursion={})
    assert (half.second_round_questions, half.plans_per_step) == (2, 384)
    assert [count_rounds(half, number) + count_rounds(half, number + 1) for number in range(0, 8, 2)] == [3, 3, 3, 3]
    three_quarters = config(recursion={"share": 0.75})
    assert sorted(count_rounds(three_quarters, number) for number in range(4)) == [1, 2, 2, 2]
    assert [count_rounds(config(recursion={"share": 1}), number) for number in range(4)] == [2, 2, 2, 2]


def test_second_rounds_are_at_other_positions_in_each_step_and_with_each_seed() -> None:
    half = config(recursion={})
    numbers = [number for number in range(400) if count_rounds(half, number) == 2]
    assert 80 < sum(number % 2 for number in numbers) < 120, "of a pair, the second question as often as the first"
    reseeded = config(recursion={}, seed=1)
    assert numbers != [number for number in range(400) if count_rounds(reseeded, number) == 2]


def test_processes_share_the_plans_of_a_step_in_equal_micro_batches() -> None:
    assert split_plans(config(), 2) == (8, 16)
    assert split_plans(config(recursion={}), 2) == (8, 24)
    with pytest.raises(ConfigError, match="256 plans per step can't be split evenly over 3 processes"):
        split_plans(config(), 3)


@pytest.mark.parametrize(
    ("questions", "rollouts", "processes", "micro_batch"),
    [(1, 2, 1, 2), (1, 4, 1, 4), (2, 4, 2, 4), (3, 6, 1, 6), (5, 5, 1, 5), (1, 11, 1, 1), (2, 16, 1, 8)],
)
def test_micro_batches_fit_a_step_of_any_size(questions: int, rollouts: int, processes: int, micro_batch: int) -> None:
    settings = config(grpo={"questions": questions, "rollouts": rollouts})
    steps = questions * rollouts // processes // micro_batch
    assert split_plans(settings, processes) == (micro_batch, steps)


def test_a_micro_batch_that_does_not_divide_the_plans_of_a_process_is_rejected() -> None:
    message = "grpo.micro_batch = 8 must divide the 4 plans per step of each of 2 processes; write 4, for example"
    with pytest.raises(ConfigError, match=re.escape(message)):
        split_plans(config(grpo={"questions": 1, "rollouts": 8, "micro_batch": 8}), 2)


@pytest.mark.parametrize(("questions", "share", "processes"), [(4, 0.5, 2), (12, 0.333, 4), (8, 1.0, 8)])
def test_processes_share_whole_questions_and_second_rounds_evenly(questions: int, share: float, processes: int) -> None:
    settings = config(recursion={"share": share}, grpo={"questions": questions, "rollouts": 4, "micro_batch": 4})
    assert split_plans(settings, processes) == (4, settings.plans_per_step // processes // 4)
    rows = [
        (number, turn)
        for number in range(questions)
        for turn in range(count_rounds(settings, number))
        for _ in range(4)
    ]
    size = len(rows) // processes
    shares = [rows[start : start + size] for start in range(0, len(rows), size)]
    assert sum(len({number for number, _ in each}) for each in shares) == questions
    assert len({sum(index for _, index in each) for each in shares}) == 1


def test_splitting_a_question_over_processes_is_rejected() -> None:
    message = (
        "whole questions, so 4 processes must divide both grpo.questions = 4 and the 2 of them with a second round"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        split_plans(config(recursion={}), 4)
