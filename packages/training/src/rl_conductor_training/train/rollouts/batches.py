"""The composition of a step's batch, and its split over processes. Pure.

A row is a plan. TRL treats `grpo.rollouts` consecutive rows as a group and splits rows over processes in order. A
question has a group for each of its rounds, one after the other.
"""

from __future__ import annotations

import random
from math import gcd

from rl_conductor.errors import ConfigError
from rl_conductor_training.train.config import TrainConfig, largest_divisor

MAX_MICRO_BATCH = 8
"""Plans per pass on a device, at most, unless the configuration has another number."""


def count_rounds(config: TrainConfig, index: int) -> int:
    """Counts the rounds of the prompt instance `index`.

    Those with two are spread evenly over a step: its questions form the smallest blocks with the same number of them,
    and their positions in a block are random, so that not always the same question of a contrast set gets two.
    """
    questions, second_rounds = config.grpo.questions, config.second_round_questions
    blocks = gcd(questions, second_rounds)
    block, position = divmod(index, questions // blocks)
    rng = random.Random(f"{config.seed} second rounds {block}")  # noqa: S311
    return 1 + (position in rng.sample(range(questions // blocks), second_rounds // blocks))


def split_plans(config: TrainConfig, processes: int) -> tuple[int, int]:
    """Returns the plans in a micro-batch, and the micro-batches per step and process (gradient accumulation steps).

    Raises:
        ConfigError: the plans of a step can't be split evenly.
    """
    plans, remainder = divmod(config.plans_per_step, processes)
    if remainder:
        raise ConfigError(
            f"{config.plans_per_step} plans per step can't be split evenly over {processes} processes: change"
            " grpo.questions or grpo.rollouts"
        )
    micro_batch = config.grpo.micro_batch or largest_divisor(plans, MAX_MICRO_BATCH)
    if plans % micro_batch:
        raise ConfigError(
            f"grpo.micro_batch = {micro_batch} must divide the {plans} plans per step of each of {processes} processes;"
            f" write {largest_divisor(plans, micro_batch)}, for example, or leave it out"
        )
    if config.recursion and (config.grpo.questions % processes or config.second_round_questions % processes):
        raise ConfigError(
            f"with [recursion] each process takes whole questions, so {processes} processes must divide both"
            f" grpo.questions = {config.grpo.questions} and the {config.second_round_questions} of them with a second"
            " round"
        )
    return micro_batch, plans // micro_batch
