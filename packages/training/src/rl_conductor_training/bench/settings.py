"""Settings of a bench: the tables of a bench file, with its tasks, pools and systems."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from rl_conductor._internal.toml import read_toml
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.pool.model_entry import ModelEntry
from rl_conductor_training.bench.pools import BenchPoolSettings
from rl_conductor_training.bench.systems import AnySystem
from rl_conductor_training.bench.systems.conductor import ConductorSystem
from rl_conductor_training.bench.systems.learned import LearnedConductor
from rl_conductor_training.bench.systems.single_model import SingleModel
from rl_conductor_training.tasks import Task, TaskEntry, load_task
from rl_conductor_training.tasks.scorers.judge import judge_entry
from rl_conductor_training.workers.reply_cache import cache_version

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$")]


class TaskSettings(TaskEntry):
    """Settings of a task: the table `[tasks.NAME]` or `[calibration]`, where `name` is written as `task`."""

    name: str = Field(validation_alias=AliasChoices("task", "name"))

    @property
    def judge(self) -> ModelEntry | None:
        """The judge model that scores replies, if the task has one."""
        judge = self.options.get("judge")
        return judge_entry(judge) if isinstance(judge, str) else None

    @property
    def identity(self) -> str:
        """Serialises the scoring method with its options, but not the choice of samples."""
        kind, judge = self.name.partition(":")[0], self.judge
        options = {name: value for name, value in self.options.items() if name != "path"}
        if judge is not None:  # whose file may have changed
            options["judge"] = judge.model
        return json.dumps([kind, options, judge and cache_version(judge)], sort_keys=True, default=str)

    def build(self, limit: int | None = None, *, build_model: Callable[[ModelEntry], Model] = ModelEntry.build) -> Task:
        """Loads the task with its judge.

        Args:
            limit: maximum number of samples, in addition to the limit of the settings.
            build_model: builds the model of the judge.
        """
        limits = [value for value in (self.limit, limit) if value is not None]
        options = self.options if self.judge is None else {**self.options, "judge": build_model(self.judge)}
        return load_task(self.name, limit=min(limits, default=None), shuffle=self.shuffle, **options)


class BenchSettings(BaseModel):
    """The content of a bench file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: dict[Name, TaskSettings] = Field(min_length=1)
    pools: dict[Name, BenchPoolSettings] = Field(min_length=1)
    systems: dict[Name, AnySystem] = Field(min_length=1)
    """Run and listed in this order."""
    calibration: TaskSettings | None = None
    """The task that systems may learn from; questions that are also in the test are left out."""
    against: tuple[Name, ...] = ()
    """Baselines that the other systems are compared with, question by question."""
    repeats: int = Field(default=1, ge=1)
    concurrency: int = Field(default=4, ge=1)
    """Maximum number of samples at a time; latency is comparable only if the machine is not overloaded."""
    seed: int = 0
    cache: Path | None = None
    """SQLite file that caches replies of models; by default in the user's cache folder."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all models that the file mentions: planners, judges and workers."""
        conductors = [entry for entry in self.systems.values() if isinstance(entry, ConductorSystem | LearnedConductor)]
        planners = [entry.planner for entry in conductors if entry.planner is not None]
        judges = [entry.judge for entry in (*self.tasks.values(), self.calibration) if entry and entry.judge]
        workers = [name for pool in self.pools.values() for name in pool.models]
        return (*(entry.model for entry in (*planners, *judges)), *workers)

    def select_systems(self, names: Sequence[str]) -> Self:
        """Returns a copy with these systems only.

        Raises:
            ConfigError: a system does not exist.
        """
        unknown = [name for name in names if name not in self.systems]
        if unknown:
            raise ConfigError(f"no system {unknown[0]!r}: the bench file has {', '.join(self.systems)}")
        systems = {name: entry for name, entry in self.systems.items() if name in names}
        return self.model_copy(update={"systems": systems})

    @model_validator(mode="after")
    def _check_baselines(self) -> Self:
        baselines = [name for name, entry in self.systems.items() if not isinstance(entry, SingleModel)]
        unknown = [name for name in self.against if name not in baselines]
        if unknown:
            raise ValueError(
                f"against names {', '.join(unknown)}, but it may name {', '.join(baselines) or 'no system'}"
            )
        return self


def read_settings(path: Path) -> BenchSettings:
    """Reads and validates a bench file; paths in it are relative to its folder.

    Raises:
        ConfigError: the file does not exist, is not TOML or has an invalid key; the message names it.
    """
    settings = read_toml(path, BenchSettings, "bench file")
    pools = {
        name: pool.model_copy(update={"file": path.parent / pool.file}) if pool.file else pool
        for name, pool in settings.pools.items()
    }
    tasks = {name: entry.resolve_paths(path.parent) for name, entry in settings.tasks.items()}
    calibration = settings.calibration and settings.calibration.resolve_paths(path.parent)
    cache = settings.cache and path.parent / settings.cache.expanduser()
    return settings.model_copy(update={"tasks": tasks, "calibration": calibration, "pools": pools, "cache": cache})
