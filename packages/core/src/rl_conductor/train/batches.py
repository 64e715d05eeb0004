"""Which rows make up the batch of a step, and how they are dealt out to processes. Pure.

A row is a plan. TRL takes rows that follow each other for a group, as many as `grpo.rollouts`, and deals them out in
order. A question has a group for each of its rounds, one behind the other.
"""

from __future__ import annotations

from rl_conductor.errors import ConfigError
from rl_conductor.train.config import TrainConfig


def rounds(config: TrainConfig, number: int) -> int:
    """How many rounds the exercise of this number has; those with two are spread evenly over a step."""
    place = number % config.grpo.questions
    before, after = (count * config.judged // config.grpo.questions for count in (place, place + 1))
    return 1 + after - before


def passes(config: TrainConfig, processes: int) -> int:
    """How many micro-batches each process makes of its share of a step.

    Raises:
        ConfigError: there are no equal shares.
    """
    count, rest = divmod(config.plans, config.grpo.micro_batch * processes)
    if rest:
        raise ConfigError(
            f"{config.plans} plans a step can't be dealt out to {processes} processes in micro-batches of"
            f" {config.grpo.micro_batch}: change grpo.micro_batch"
        )
    if config.recursion and (config.grpo.questions % processes or config.judged % processes):
        raise ConfigError(
            f"with [recursion] each process takes whole questions, so {processes} processes must divide both"
            f" grpo.questions = {config.grpo.questions} and the {config.judged} of them with a second round"
        )
    return count
