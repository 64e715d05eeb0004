"""Marks checkpoints as complete, so that an interrupted save is never resumed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rl_conductor_training.train.run_dir import COMPLETE


class CheckpointCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Writes a marker file into each checkpoint once everything else is saved."""

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Marks the checkpoint of the current step as complete; Trainer calls this after saving."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()
