"""TRL's `GRPOTrainer` with two overrides: rollouts of our own, and log-probabilities under the grammar."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerControl
from trl import GRPOTrainer
from trl.trainer.utils import pad

from rl_conductor_training.train.policy.logprobs import TokenLogProbs, plan_logprobs
from rl_conductor_training.train.rollouts.rollout_fn import RolloutFunction, RolloutRequest
from rl_conductor_training.train.run_dir import COMPLETE, ValidationScore

_RandomState = tuple[torch.Tensor, torch.Tensor | None]


class ConductorTrainer(GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """GRPO on plans, with the loss of the distribution that plans are sampled from."""

    rollout_requests: Sequence[RolloutRequest] = ()
    """The requests of the current batch, one per row."""
    _random_state: _RandomState | None = None
    """The random state before the current batch."""

    def __init__(self, *, rollout_function: RolloutFunction, loss_chunk: int | None, **options: Any) -> None:
        self._rollout_function = rollout_function
        self._loss_chunk = loss_chunk
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func'")  # experimental, so TRL is pinned closely
            super().__init__(rollout_func=rollout_function, **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Stores the rows of a batch for the rollout function, to which TRL passes the prompts only."""
        self.rollout_requests = [RolloutRequest(row["instance"], row["round"]) for row in inputs]
        self._random_state = _random_state()
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
        """Computes log-probabilities and entropies of the plans: the last `logits_to_keep` tokens of each row."""
        prompts = _unpad(input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep])
        plans = _unpad(input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:])
        share_prefix = not self.args.gradient_checkpointing
        results: list[TokenLogProbs | None] = [None] * len(plans)
        prompt_groups: list[Hashable] = [
            self._rollout_function.prompt_group(prompt) if share_prefix else tuple(prompt) for prompt in prompts
        ]
        for indices in _batch_by_group(prompt_groups, max_size=batch_size or len(prompts)):
            with self.accelerator.autocast():
                batch = plan_logprobs(
                    model,
                    [prompts[index] for index in indices],
                    [plans[index] for index in indices],
                    temperature=self.temperature,
                    grammar=self._rollout_function.grammar(prompts[indices[0]]),
                    share_prefix=share_prefix,
                    chunk=self._loss_chunk,
                )
            for index, result in zip(indices, batch, strict=True):
                results[index] = result
        columns = zip(*(result for result in results if result is not None), strict=True)
        log_probs, entropies = (_pad_right(column, logits_to_keep) for column in columns)
        return log_probs, entropies, None

    def save_before_batch(self) -> None:
        """Saves a checkpoint of the state before the batch that a cap has ended, so that resuming repeats the batch."""
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self.state.global_step == 0 or (checkpoint / COMPLETE).exists():
            return
        if self._random_state is not None:
            _restore_random_state(self._random_state)
        self._save_checkpoint(self.model_wrapped, trial=None)
        self.callback_handler.on_save(self.args, self.state, TrainerControl())

    @contextmanager
    def sampling_state(self, *, seed: int) -> Iterator[None]:
        """Prepares the model, the weights of vLLM and the random state for sampling outside of a batch."""
        if self.use_vllm:
            self.vllm_generation.sync_weights()
        was_training = self.model.training
        state = _random_state()
        torch.manual_seed(seed)
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)
            _restore_random_state(state)

    def log_validation(self, evaluation: ValidationScore) -> None:
        """Adds an evaluation to the metrics of the current step."""
        if evaluation.step:
            self._metrics["train"]["validation"].append(evaluation.score)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Writes no README.md: TRL's tells how to chat with the model, and can't name the base of a local one."""

    def _send_telemetry(self) -> None:
        """Disables TRL's usage telemetry."""


def _random_state() -> _RandomState:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None


def _restore_random_state(state: _RandomState) -> None:
    processor, cuda = state
    torch.set_rng_state(processor)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)


def _unpad(tokens: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[row_mask].tolist() for row, row_mask in zip(tokens, mask.bool(), strict=True)]


def _batch_by_group(groups: Sequence[Hashable], *, max_size: int) -> list[list[int]]:
    """Splits row indices into batches of at most `max_size` rows of the same group."""
    by_group: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        by_group.setdefault(group, []).append(index)
    return [
        indices[start : start + max_size] for indices in by_group.values() for start in range(0, len(indices), max_size)
    ]


def _pad_right(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    padded: torch.Tensor = pad([*rows, rows[0].new_zeros(length)], padding_value=0.0, padding_side="right")
    return padded[:-1]
