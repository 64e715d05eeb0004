"""A run's folder: what belongs to one configuration, which checkpoints are whole, and the record of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_conductor.errors import ConfigError
from rl_conductor.train.config import TrainConfig
from rl_conductor.train.lines import read_value, write_lines, write_value
from rl_conductor.train.outcomes import Drawn
from rl_conductor.train.verdict import Verdict
from rl_conductor.types import Value

WHOLE = "whole"
"""Written into a checkpoint last: one without it was cut short."""


class Warmth(Value):
    """How a run was warm-started."""

    plans: int
    """Different plans that were learnt from; all had given right answers."""
    source: str
    steps: int
    loss: float


class RunRecord(Value):
    """What was done, for whoever reads the result."""

    config: dict[str, Any]
    versions: dict[str, str]
    machine: str
    warm_start: Warmth | None = None
    step: int = 0
    seconds: float = 0.0
    """Of this call; a run may have been made in several."""
    totals: dict[str, float] = Field(default_factory=dict)
    """What the workers used over all steps: `usd`, `tokens`, `calls`."""
    verdict: Verdict | None = None
    written: datetime = Field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class Folder:
    """Where a run keeps everything."""

    path: Path

    @classmethod
    def of(cls, path: Path, config: TrainConfig) -> Folder:
        """The folder of a run by `config`, new or begun before.

        Raises:
            ConfigError: nothing can be written there, another configuration was begun there, or what was can't be read.
        """
        file = path / "config.json"
        if file.exists():
            _ensure_same(path, read_value(file, TrainConfig), config)
        write_value(file, config)
        return cls(path)

    @property
    def warm_start(self) -> Path:
        """What the warm start left."""
        return self.path / "warm_start"

    @property
    def final(self) -> Path:
        """The trained model, or its adapter, and its tokenizer."""
        return self.path / "final"

    def checkpoint(self) -> Path | None:
        """The newest checkpoint that is whole."""
        return newest_whole(self.path)

    def keep_plans(self, step: int, drawn: Sequence[Drawn]) -> None:
        """Keep what was drawn for a step; one that is done again is written again."""
        write_lines(self.path / "plans" / f"{step:05}.jsonl", drawn)

    def record(self) -> RunRecord | None:
        """What was done so far."""
        return read_value(self._record, RunRecord) if self._record.exists() else None

    def keep_record(self, record: RunRecord) -> None:
        """Write the record."""
        write_value(self._record, record)

    @property
    def _record(self) -> Path:
        return self.path / "record.json"


def _ensure_same(path: Path, begun: TrainConfig, config: TrainConfig) -> None:
    deciding = [name for name in TrainConfig.model_fields if name != "keep"]  # nothing that is learnt depends on it
    changed = [name for name in deciding if getattr(begun, name) != getattr(config, name)]
    if changed:
        raise ConfigError(
            f"{str(path)!r} holds a run with other settings of {', '.join(changed)}: a run goes on only"
            " as it began. Give --output another folder, or remove this one"
        )


def newest_whole(path: Path) -> Path | None:
    """The newest checkpoint in `path` that is whole."""
    found = [one for one in path.glob("checkpoint-*") if (one / WHOLE).exists()]
    return max(found, key=lambda one: int(one.name.partition("-")[2]), default=None)
