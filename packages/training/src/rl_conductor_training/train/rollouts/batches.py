"""The composition of a step's batch, and its split over processes. Pure.

A row is a plan. TRL treats `grpo.rollouts` consecutive rows as a group and splits rows over processes in order. A
question has a group for each of its rounds, one after the other.
"""

from __future__ import annotations

from rl_conductor.errors import ConfigError
from rl_conductor_training.train.config import TrainConfig


def count_rounds(config: TrainConfig, index: int) -> int:
    """Counts the rounds of the prompt instance `index`; those with two are spread evenly over a step."""
    position = index % config.grpo.questions
    before, after = (
        count * config.second_round_questions // config.grpo.questions for count in (position, position + 1)
    )
    return 1 + after - before


def accumulation_steps(config: TrainConfig, processes: int) -> int:
    """Counts the micro-batches per step and process (gradient accumulation steps).

    Raises:
        ConfigError: the plans of a step can't be split evenly.
    """
    steps, remainder = divmod(config.plans_per_step, config.grpo.micro_batch * processes)
    if remainder:
        raise ConfigError(
            f"{config.plans_per_step} plans per step can't be split evenly over {processes} processes in micro-batches"
            f" of {config.grpo.micro_batch}: change grpo.micro_batch"
        )
    if config.recursion and (config.grpo.questions % processes or config.second_round_questions % processes):
        raise ConfigError(
            f"with [recursion] each process takes whole questions, so {processes} processes must divide both"
            f" grpo.questions = {config.grpo.questions} and the {config.second_round_questions} of them with a second"
            " round"
        )
    return steps
