"""TRL's `GRPOTrainer` with our plans in it: one override for the grammar, and a reward that runs workers for real."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import pad

from rl_conductor.train.config import RewardEntry
from rl_conductor.train.diagnostics import Reference, diagnostics
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.held import Held
from rl_conductor.train.outcomes import Drawn, Judge
from rl_conductor.train.rewards import rewards
from rl_conductor.train.rollouts import Rollouts
from rl_conductor.train.scoring import Scored, score

Told = Callable[[int, Sequence[Drawn]], None]
"""Told of each batch: the step it is for, from 1, and the plans."""


class ConductorTrainer(GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """GRPO on plans: its loss is that of the distribution which plans are drawn from."""

    def __init__(self, *, rollouts: Rollouts, held: Held | None, **options: Any) -> None:
        self._held = held
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func'")  # experimental, so TRL is pinned closely
            super().__init__(rollout_func=rollouts, **options)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Log-probabilities and entropies of the plans, which are the last `logits_to_keep` tokens of each row."""
        prompts = _rows(input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep])
        plans = _rows(input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:])
        scored: list[Scored | None] = [None] * len(plans)
        for places in _alike(prompts, most=batch_size or len(prompts)):
            with self.accelerator.autocast():
                found = score(
                    model,
                    [prompts[place] for place in places],
                    [plans[place] for place in places],
                    temperature=self.temperature,
                    held=self._held,
                    share=not self.args.gradient_checkpointing,
                )
            for place, one in zip(places, found, strict=True):
                scored[place] = one
        columns = zip(*(one for one in scored if one is not None), strict=True)
        log_probs, entropies = (_padded(column, logits_to_keep) for column in columns)
        return log_probs, entropies, None

    def _send_telemetry(self) -> None:
        """TRL would tell its makers of each run; ours tells nobody."""


def _rows(tokens: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[kept].tolist() for row, kept in zip(tokens, mask.bool(), strict=True)]


def _alike(prompts: Sequence[Sequence[int]], *, most: int) -> list[list[int]]:
    """The places of equal prompts, together, at most so many at once."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(tuple(prompt), []).append(place)
    return [places[start : start + most] for places in groups.values() for start in range(0, len(places), most)]


def _padded(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    joined: torch.Tensor = pad([*rows, rows[0].new_zeros(length)], padding_value=0.0, padding_side="right")
    return joined[:-1]


class Reward:
    """TRL's reward function: runs the plans of a batch, all at once, and rewards them a group at a time."""

    __name__ = "reward"

    def __init__(
        self,
        exercises: Sequence[Exercise],
        judge: Judge,
        entry: RewardEntry,
        *,
        references: dict[str, Reference],
        told: Told,
    ) -> None:
        self._exercises = exercises
        self._judge = judge
        self._entry = entry
        self._references = references
        self._told = told

    async def __call__(
        self,
        *,
        exercise: list[int],
        plan: list[str],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        """The rewards of plans, each for the exercise whose number stands beside it."""
        asked = [self._exercises[number] for number in exercise]
        outcomes = await self._judge.outcomes(asked, plan)
        groups = [
            [outcomes[place] for place, _ in group]
            for _, group in groupby(enumerate(exercise), key=lambda numbered: numbered[1])
        ]
        given = [rewards(group, self._entry) for group in groups]
        questions = [self._exercises[number].sample.id for number, _ in groupby(exercise)]
        known = [self._references.get(question) for question in questions]
        for name, value in diagnostics(groups, given, known).items():
            log_metric(f"plans/{name}", value)
        flat = [reward for group in given for reward in group]
        step = trainer_state.global_step + 1
        if trainer_state.is_world_process_zero:
            self._told(step, [Drawn.of(step, *one) for one in zip(asked, outcomes, flat, strict=True)])
        return flat
