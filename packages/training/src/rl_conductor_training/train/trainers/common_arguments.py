"""The arguments of Hugging Face's trainer that all trainings have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def common_arguments(output: Path, *, seed: int, dtype: str) -> dict[str, Any]:
    """Returns those of the machine, of the folder for checkpoints, and of a log with each step and without a bar."""
    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(output),
        "seed": seed,
        "use_cpu": not cuda,
        "bf16": dtype == "bfloat16",
        "dataloader_pin_memory": cuda,
        # A process runs the model as often as its plans have prompts; each broadcast would wait for the others.
        "ddp_broadcast_buffers": False,
        "logging_steps": 1,
        "disable_tqdm": True,
    }
