"""TRL's `GRPOTrainer` with our plans in it: one override for the grammar, one that says what rows are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import pad

from rl_conductor.train.rollouts import Asked, Rollouts
from rl_conductor.train.scoring import Scored, score


class ConductorTrainer(GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """GRPO on plans: its loss is that of the distribution which plans are drawn from."""

    asked: Sequence[Asked] = ()
    """What the rows of the batch at hand ask for."""

    def __init__(self, *, rollouts: Rollouts, **options: Any) -> None:
        self._rollouts = rollouts
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func'")  # experimental, so TRL is pinned closely
            super().__init__(rollout_func=rollouts, **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch; its hook for rollouts is told of prompts only, so it looks here for the rest."""
        self.asked = [Asked(row["exercise"], row["round"]) for row in inputs]
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return batch

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
        share = not self.args.gradient_checkpointing
        scored: list[Scored | None] = [None] * len(plans)
        kin: list[Hashable] = [self._rollouts.family(prompt) if share else tuple(prompt) for prompt in prompts]
        for places in _together(kin, most=batch_size or len(prompts)):
            with self.accelerator.autocast():
                found = score(
                    model,
                    [prompts[place] for place in places],
                    [plans[place] for place in places],
                    temperature=self.temperature,
                    held=self._rollouts.held(prompts[places[0]]),
                    share=share,
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


def _together(kin: Sequence[Hashable], *, most: int) -> list[list[int]]:
    """The places of what is equal, together, at most so many at once."""
    groups: dict[Hashable, list[int]] = {}
    for place, one in enumerate(kin):
        groups.setdefault(one, []).append(place)
    return [places[start : start + most] for places in groups.values() for start in range(0, len(places), most)]


def _padded(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    joined: torch.Tensor = pad([*rows, rows[0].new_zeros(length)], padding_value=0.0, padding_side="right")
    return joined[:-1]
