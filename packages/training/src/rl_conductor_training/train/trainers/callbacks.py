"""Callbacks of trainers: metrics, early stops, spending, and checkpoints that are marked as complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from rl_conductor_training.train.interruption import Interruption
from rl_conductor_training.train.rewards.metrics import METRIC_PREFIX
from rl_conductor_training.train.run_dir import COMPLETE

StepMetrics = dict[str, float]
"""The metrics of a step: those of `step_metrics`, and TRL's own."""


class MetricsCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Passes the logged metrics of each step to `on_step`."""

    def __init__(self, on_step: Callable[[int, StepMetrics], None]) -> None:
        self._on_step = on_step

    def on_log(self, _args: Any, state: Any, _control: Any, *, logs: dict[str, Any], **_: Any) -> None:
        """Reports logs that have a loss, which are those of a step."""
        if state.is_world_process_zero and "loss" in logs:
            self._on_step(state.global_step, parse_metrics(logs))


class StopCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Ends this call early, with a checkpoint."""

    def __init__(self, last_step: int, interruption: Interruption) -> None:
        self._last_step = last_step
        self._interruption = interruption

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops after the last step of this call, and after Ctrl-C in any process."""
        if state.global_step >= self._last_step or any(gather_object([self._interruption.is_requested])):
            control.should_save = control.should_training_stop = True


class SpendingCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Calls `save` before the first step and after each, in every process; evaluations must come before it."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Saves the spending of the evaluation before the first step."""
        self._save()

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Saves the spending of the step and of the evaluation after it."""
        self._save()


class CheckpointCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Writes a marker file into each checkpoint once all else is saved: an interrupted save is never resumed from."""

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Marks the checkpoint of the current step as complete; Trainer calls this after saving."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()


def parse_metrics(logs: Mapping[str, Any]) -> StepMetrics:
    """Converts the logs of a step; metrics without a value are left out."""
    return {name.removeprefix(METRIC_PREFIX): float(value) for name, value in logs.items() if value is not None}
