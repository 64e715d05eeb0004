"""Tasks: samples with verifiers, the same for benchmark and training; `task("name")` loads any of them.

Each data set or family lives in a file of its own and imports what it needs only when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.tasks.base import Sample, Score, Task
from rl_conductor.types import Value

TASKS = {
    "aime25": "rl_conductor.tasks.mathematics:aime25",
    "bigcodebench": "rl_conductor.tasks.coding:bigcodebench",
    "composite": "rl_conductor.tasks.composite:composite",
    "gpqa-diamond": "rl_conductor.tasks.choices:gpqa_diamond",
    "gsm8k": "rl_conductor.tasks.mathematics:gsm8k",
    "jsonl": "rl_conductor.tasks.userfile:jsonl",
    "livecodebench": "rl_conductor.tasks.coding:livecodebench",
    "math-500": "rl_conductor.tasks.mathematics:math_500",
    "mixture": "rl_conductor.tasks.mixture:mixture",
    "mmlu": "rl_conductor.tasks.choices:mmlu",
    "reasoning-gym": "rl_conductor.tasks.procedural:reasoning_gym",
    "rlpr": "rl_conductor.tasks.rlpr:rlpr",
}
"""Name to the function that loads it."""


def task(name: str, *, limit: int | None = None, shuffle: int | None = None, **options: Any) -> Task:
    """The task called `name`, such as `math-500`, `composite:heldout` or `jsonl:my-tasks.jsonl`.

    Args:
        name: a task of `TASKS`; what follows a colon is its first argument: a split, a file, a set's own name.
        limit: keep only the first so many samples.
        shuffle: the seed of another order, before `limit` is applied.
        options: the other arguments of the task.

    Raises:
        ConfigError: no such task, a missing library, or data that is not there or has another shape.
    """
    argument = name.partition(":")[2]
    load = _loader(name)
    given = [argument] if argument else []
    try:
        signature(load).bind(*given, **options)
    except TypeError as error:
        raise ConfigError(f"task {name!r}: {error}; it takes {signature(load)}") from error
    made = load(*given, **options)
    made = made if shuffle is None else made.shuffled(shuffle)
    return made if limit is None else made.first(limit)


class TaskEntry(Value):
    """A task as a file names it."""

    name: str
    """As for `task`, such as `composite:train` or `jsonl:my-tasks.jsonl`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The task's own, such as `size` and `seed`."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many samples."""
    shuffle: int | None = None
    """The seed of another order, before `limit` is applied."""

    @model_validator(mode="after")
    def _options_are_the_tasks_own(self) -> Self:
        for name in ("limit", "shuffle"):
            if name in self.options:
                raise ValueError(f"{name} stands beside options, not among them")
        return self

    def build(self) -> Task:
        """The task itself."""
        return task(self.name, limit=self.limit, shuffle=self.shuffle, **self.options)

    def beside(self, folder: Path) -> Self:
        """The same with the files that it names in `folder`."""
        name, options = beside(folder, self.name, self.options)
        return self.model_copy(update={"name": name, "options": options})


def beside(folder: Path, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options of a task, with the files that they name, if any, in `folder`.

    Raises:
        ConfigError: no such task, or a missing library.
    """
    known, _, argument = name.partition(":")
    if known == "mixture":
        from rl_conductor.tasks import mixture  # noqa: PLC0415 (it needs this module)

        return name, mixture.beside(folder, options)
    if argument and next(iter(signature(_loader(name)).parameters)) == "path":
        name = f"{known}:{folder / Path(argument).expanduser()}"
    if isinstance(options.get("path"), str):
        options = {**options, "path": str(folder / Path(options["path"]).expanduser())}
    return name, options


def _loader(name: str) -> Callable[..., Task]:
    known = name.partition(":")[0]
    if known not in TASKS:
        raise ConfigError(
            f"no task {name!r}: write one of {', '.join(sorted(TASKS))}, or one and its argument as in 'jsonl:FILE'"
        )
    module, _, function = TASKS[known].partition(":")
    load: Callable[..., Task] = getattr(import_module(module), function)
    return load


__all__ = ["TASKS", "Sample", "Score", "Task", "TaskEntry", "beside", "task"]
