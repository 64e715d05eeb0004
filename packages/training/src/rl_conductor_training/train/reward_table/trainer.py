"""transformers' `Trainer` with the losses of a table: checkpoints, schedule and optimizer are its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler, SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.reward_table.objectives import question_loss
from rl_conductor_training.train.reward_table.policy import EncodedQuestion, demonstration_logprobs, sequence_logprobs
from rl_conductor_training.train.reward_table.table import TableSettings, TrainingItem
from rl_conductor_training.train.trainers.callbacks import CheckpointCallback
from rl_conductor_training.train.trainers.common_arguments import common_arguments

WARMUP_STEPS = 3
"""Steps over which the learning rate rises."""

StepCallback = Callable[[int, int, float], None]
"""Called with the number of finished steps, of all steps, and the last loss."""


class TableTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """Trains on the plans of a table, question by question."""

    def __init__(
        self,
        *,
        questions: Sequence[EncodedQuestion],
        grammar: GrammarConstraint | None,
        settings: TableSettings,
        **options: Any,
    ) -> None:
        super().__init__(data_collator=list, **options)
        self._questions, self._grammar, self._settings = questions, grammar, settings
        self.remove_callback(PrinterCallback)
        self.add_callback(CheckpointCallback())

    def compute_loss(self, model: Any, inputs: list[TrainingItem], **_: Any) -> torch.Tensor:
        """Computes the mean loss of some questions."""
        demonstrations = [self._questions[item.position] for item in inputs if item.is_supervised]
        losses = [self._question_loss(model, item) for item in inputs if not item.is_supervised]
        if demonstrations:
            losses.append(-demonstration_logprobs(model, demonstrations, self._grammar))
        return torch.cat(losses).mean()

    def _question_loss(self, model: Any, item: TrainingItem) -> torch.Tensor:
        question = self._questions[item.position]
        log_probs = sequence_logprobs(model, question, self._grammar)
        return question_loss(log_probs, question.scores.to(log_probs.device), self._settings).unsqueeze(0)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """Keeps the order of the items, of which each step has a mixture."""
        return SequentialSampler(train_dataset or self.train_dataset)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Leaves the items as they are: their tokens are moved to the device when they are used."""
        return inputs


class StepWatcher(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports each step, evaluates at intervals, and stops between two questions when the time is over."""

    def __init__(
        self, *, on_step: StepCallback, evaluate: Callable[[int], bool], every: int, is_over: Callable[[], bool]
    ) -> None:
        self._on_step, self._evaluate, self._every, self._is_over = on_step, evaluate, every, is_over

    def on_substep_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Stops if the time is over."""
        control.should_training_stop = control.should_training_stop or self._is_over()

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Reports a finished step with its loss."""
        if logs and "loss" in logs:
            self._on_step(state.global_step, state.max_steps, logs["loss"])

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluates after every few steps and after the last one.

        A step whose evaluation did not end is not saved, so that it is repeated.
        """
        is_due = state.global_step % self._every == 0 or state.global_step == state.max_steps
        if is_due and (self._is_over() or not self._evaluate(state.global_step)):
            control.should_save = False
        control.should_training_stop = control.should_training_stop or self._is_over()


def training_arguments(folder: Path, settings: TableSettings, *, is_supervised: bool) -> TrainingArguments:
    """Returns the arguments of a stage with checkpoints in `folder`."""
    return TrainingArguments(
        **common_arguments(folder, seed=settings.seed, dtype=settings.dtype),
        max_steps=settings.supervised_steps if is_supervised else settings.steps,
        # The method takes one question at a time, whose plans share the prompt.
        per_device_train_batch_size=settings.supervised_batch if is_supervised else 1,
        gradient_accumulation_steps=1 if is_supervised else settings.batch,
        learning_rate=settings.supervised_rate if is_supervised else settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARMUP_STEPS,
        remove_unused_columns=False,
        report_to="none",
        save_steps=settings.evaluate_every,
        save_total_limit=2,
    )
