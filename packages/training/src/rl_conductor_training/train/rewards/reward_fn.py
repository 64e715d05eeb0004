"""TRL's reward function: computes the rewards and the metrics of a batch from its rollouts. Executes nothing.

The plans for a question may be spread over several processes, so each of them gathers the rows of all: ranks, sums and
shares then cover the whole step, and are the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object

from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rewards.compute import group_rewards, two_round_rewards
from rl_conductor_training.train.rewards.metrics import METRIC_PREFIX, Reference, step_metrics
from rl_conductor_training.train.rollouts.masked import ensure_scored
from rl_conductor_training.train.rollouts.rollout_fn import Rollout
from rl_conductor_training.train.rollouts.scoring import LoggedPlan, ScoredPlan

PlanLogger = Callable[[int, Sequence[LoggedPlan]], None]
"""Receives the step of a batch, from 1, and its plans."""


class RewardRow(NamedTuple):
    """The part of a rollout that is gathered from all processes."""

    instance: int
    scored: ScoredPlan | None
    previous: ScoredPlan | None

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> RewardRow:
        """Leaves out the finished rounds, which are long and don't affect the reward."""
        scored, previous = (
            plan and plan.model_copy(update={"round": None}) for plan in (rollout.scored, rollout.previous)
        )
        return cls(rollout.instance.index, scored, previous)


class RewardFunction:
    """Rewards the rows of a batch, a question at a time."""

    __name__ = "reward"

    def __init__(
        self,
        config: TrainConfig,
        instances: Sequence[PromptInstance],
        references: Mapping[str, Reference],
        *,
        log_plans: PlanLogger,
    ) -> None:
        """Stores the inputs of all batches.

        Args:
            config: the configuration of the run.
            instances: all prompt instances of the run, by index.
            references: reference scores by sample id.
            log_plans: called with the plans of each step, in the main process only.
        """
        self._config = config
        self._instances = instances
        self._references = references
        self._log_plans = log_plans

    def __call__(
        self, *, rollouts: list[Rollout], trainer_state: Any, log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        """Computes the rewards of rows, which are sorted by question and, within it, by round.

        Raises:
            NothingScoredError: most plans were masked and none has a score, in every process.
        """
        rows: list[RewardRow] = gather_object(list(map(RewardRow.from_rollout, rollouts)))
        questions = [list(group) for _, group in groupby(rows, key=lambda row: row.instance)]
        first = [[row.scored for row in group if row.scored and not row.previous] for group in questions]
        second = [[row.scored for row in group if row.previous] for group in questions]
        group_values = list(chain.from_iterable(map(self._rewards, first, second)))
        references = [self._references.get(self._instances[group[0].instance].sample.id) for group in questions]
        round_pairs = [(row.previous, row.scored) for row in rows if row.previous]
        for name, value in step_metrics(first, group_values, references, round_pairs=round_pairs).items():
            log_metric(f"{METRIC_PREFIX}{name}", value)
        rewards = list(chain.from_iterable(group_values))
        if trainer_state.is_world_process_zero:
            self._log(trainer_state.global_step + 1, rows, rewards)
        ensure_scored(trainer_state.global_step + 1, [row.scored for row in rows if row.scored])
        start = PartialState().process_index * len(rollouts)
        return rewards[start : start + len(rollouts)]

    def _rewards(self, first: Sequence[ScoredPlan], second: Sequence[ScoredPlan | None]) -> list[list[float | None]]:
        """Computes the rewards of one question's plans, a list for each of its rounds."""
        settings, recursion = self._config.reward, self._config.recursion
        if not second or recursion is None:
            return [group_rewards(first, settings)]
        return list(two_round_rewards(first, second, settings, discount=recursion.discount))

    def _log(self, step: int, rows: Sequence[RewardRow], rewards: Sequence[float | None]) -> None:
        plans = [
            LoggedPlan.from_scored(step, self._instances[row.instance], row.scored, reward, previous=row.previous)
            for row, reward in zip(rows, rewards, strict=True)
            if row.scored
        ]
        self._log_plans(step, plans)
