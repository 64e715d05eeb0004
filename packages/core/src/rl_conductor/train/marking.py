"""Marks checkpoints as whole, so that a run goes on from none that was cut short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rl_conductor.train.folder import WHOLE


class Marking(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Writes into each checkpoint, last of all, that it is whole."""

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Everything of a checkpoint is on disk."""
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / WHOLE).touch()
