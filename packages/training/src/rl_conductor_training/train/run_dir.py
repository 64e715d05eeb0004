"""The directory of a training run: its configuration, checkpoints, logged plans and record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_conductor._internal.jsonl import read_value, write_lines, write_value
from rl_conductor.errors import ConfigError
from rl_conductor.types import Value
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.rewards.verdict import Verdict
from rl_conductor_training.train.rollouts.scoring import LoggedPlan

COMPLETE = "whole"
"""Name of the marker file that is written into a checkpoint last; without it, the save was interrupted."""


class WarmStartState(Value):
    """The result of a finished warm start."""

    plans: int
    """Number of distinct demonstrations, all with right answers."""
    source: str
    steps: int
    loss: float


class RunRecord(Value):
    """A summary of a run, with the versions and the machine that produced it."""

    config: dict[str, Any]
    versions: dict[str, str]
    machine: str
    warm_start: WarmStartState | None = None
    step: int = 0
    seconds: float = 0.0
    """Duration of this call; a run may take several."""
    totals: dict[str, float] = Field(default_factory=dict)
    """Usage of the workers over all steps: `usd`, `tokens`, `calls`."""
    verdict: Verdict | None = None
    saved_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class RunDir:
    """Paths of a run's files, and methods to read and write them."""

    path: Path

    @classmethod
    def open(cls, path: Path, config: TrainConfig) -> RunDir:
        """Opens the directory of a new or interrupted run with this configuration.

        Raises:
            ConfigError: the directory can't be written to, its `config.json` differs from `config` or can't be read.
        """
        file = path / "config.json"
        if file.exists():
            _ensure_same(path, read_value(file, TrainConfig), config)
        write_value(file, config)
        return cls(path)

    @property
    def warm_start(self) -> Path:
        """The folder of the warm-started model and the demonstrations it was trained on."""
        return self.path / "warm_start"

    @property
    def final(self) -> Path:
        """The folder of the trained model, or its adapter, and its tokenizer."""
        return self.path / "final"

    def latest_checkpoint(self) -> Path | None:
        """Finds the latest complete checkpoint of the GRPO steps."""
        return latest_complete_checkpoint(self.path)

    def write_plans(self, step: int, plans: Sequence[LoggedPlan]) -> None:
        """Writes the plans of a step; a repeated step overwrites its file."""
        write_lines(self.path / "plans" / f"{step:05}.jsonl", plans)

    def read_record(self) -> RunRecord | None:
        """Reads the record; `None` before the first call has ended."""
        return read_value(self._record, RunRecord) if self._record.exists() else None

    def write_record(self, record: RunRecord) -> None:
        """Replaces the record of the run."""
        write_value(self._record, record)

    @property
    def _record(self) -> Path:
        return self.path / "record.json"


def _ensure_same(path: Path, previous: TrainConfig, config: TrainConfig) -> None:
    compared = [name for name in TrainConfig.model_fields if name != "keep"]  # it does not affect the result
    changed = [name for name in compared if getattr(previous, name) != getattr(config, name)]
    if changed:
        raise ConfigError(
            f"{str(path)!r} has a run with other settings of {', '.join(changed)}: a run resumes only with unchanged"
            " settings. Pass another folder with --output, or remove this one"
        )


def latest_complete_checkpoint(path: Path) -> Path | None:
    """Finds the `checkpoint-N` folder in `path` with the highest N that has the `COMPLETE` marker."""
    complete = [folder for folder in path.glob("checkpoint-*") if (folder / COMPLETE).exists()]
    return max(complete, key=lambda folder: int(folder.name.partition("-")[2]), default=None)
