"""What a bench file says: tasks, pools, systems, and how often."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.bench.pools import PoolSettings
from rl_conductor.bench.systems import AnySystem
from rl_conductor.bench.systems.alone import Alone
from rl_conductor.bench.systems.conducting import Conducting
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.pool import ModelEntry
from rl_conductor.tasks import Task, beside, task
from rl_conductor.toml import read_toml
from rl_conductor.workers.source import version_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskSettings(_Entry):
    """A task: `[tasks.NAME]` or `[calibration]`."""

    task: str
    """As in `composite:heldout` or `jsonl:my-tasks.jsonl`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The task's other arguments."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many samples."""
    shuffle: int | None = None
    """The seed of another order, before `limit` is applied."""

    @property
    def judge(self) -> ModelEntry | None:
        """The model that scores, where one does."""
        named = self.options.get("judge")
        return ModelEntry(model=named) if isinstance(named, str) else None

    @property
    def identity(self) -> str:
        """All that decides the score of a reply beside the sample; not which samples there are."""
        kind, judge = self.task.partition(":")[0], self.judge
        options = {name: value for name, value in self.options.items() if name != "path"}
        return json.dumps([kind, options, judge and version_of(judge)], sort_keys=True, default=str)

    def beside(self, folder: Path) -> Self:
        """The same with the file that it names, if any, in `folder`."""
        named, options = beside(folder, self.task, self.options)
        return self.model_copy(update={"task": named, "options": options})

    def build(self, limit: int | None = None, *, model: Callable[[ModelEntry], Model] = ModelEntry.build) -> Task:
        """The task, with at most `limit` samples if that is less than its own; `model` makes its judge."""
        limits = [most for most in (self.limit, limit) if most is not None]
        options = self.options if self.judge is None else {**self.options, "judge": model(self.judge)}
        return task(self.task, limit=min(limits, default=None), shuffle=self.shuffle, **options)


class BenchSettings(_Entry):
    """The whole file."""

    tasks: dict[Name, TaskSettings] = Field(min_length=1)
    pools: dict[Name, PoolSettings] = Field(min_length=1)
    systems: dict[Name, AnySystem] = Field(min_length=1)
    """In the order in which they run and are listed."""
    calibration: TaskSettings | None = None
    """What systems may choose by and learn from; questions that are in the test too are left out of it."""
    against: tuple[Name, ...] = ()
    """The systems that each other one is compared with, sample by sample."""
    repeats: int = Field(default=1, ge=1)
    concurrency: int = Field(default=4, ge=1)
    """Most samples at a time; latency is honest only where the machine has room for so many."""
    seed: int = 0
    cache: Path | None = None
    """Where replies of models are kept; by default in this user's own cache folder."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models that it mentions itself, such as those of its planners."""
        planners = [entry.planner for entry in self.systems.values() if isinstance(entry, Conducting)]
        judges = [one.judge for one in (*self.tasks.values(), self.calibration) if one and one.judge]
        workers = [name for pool in self.pools.values() for name in pool.models]
        return (*(entry.model for entry in (*planners, *judges)), *workers)

    def only(self, names: Sequence[str]) -> Self:
        """The same with these systems alone.

        Raises:
            ConfigError: there is no such system.
        """
        unknown = [name for name in names if name not in self.systems]
        if unknown:
            raise ConfigError(f"no system {unknown[0]!r}: the bench file has {', '.join(self.systems)}")
        systems = {name: entry for name, entry in self.systems.items() if name in names}
        return self.model_copy(update={"systems": systems})

    @model_validator(mode="after")
    def _compares_with_systems(self) -> Self:
        known = [name for name, entry in self.systems.items() if not isinstance(entry, Alone)]
        unknown = [name for name in self.against if name not in known]
        if unknown:
            raise ValueError(f"against names {', '.join(unknown)}, but it may name {', '.join(known) or 'no system'}")
        return self


def read_settings(path: Path) -> BenchSettings:
    """The checked content of a bench file; paths in it are relative to it.

    Raises:
        ConfigError: no such file, not TOML, or a wrong key; the message names it.
    """
    settings = read_toml(path, BenchSettings, "bench file")
    pools = {
        name: pool.model_copy(update={"file": path.parent / pool.file}) if pool.file else pool
        for name, pool in settings.pools.items()
    }
    tasks = {name: one.beside(path.parent) for name, one in settings.tasks.items()}
    calibration = settings.calibration and settings.calibration.beside(path.parent)
    cache = settings.cache and path.parent / settings.cache.expanduser()
    return settings.model_copy(update={"tasks": tasks, "calibration": calibration, "pools": pools, "cache": cache})
