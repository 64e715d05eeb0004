"""Tasks: samples with scorers, shared by benchmark and training; `load_task("name")` loads any of them.

In: a task's name and options. Out: a `Task`. Each data set lives in a module that is imported only when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from rl_conductor._internal.imports import import_object
from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample, Score, Task
from rl_conductor.types import Value
from rl_conductor_training.tasks.own import own_task_loader
from rl_conductor_training.tasks.scorers.judge import is_judge_file

TASKS = {
    "aime25": "rl_conductor_training.tasks.datasets.mathematics:aime25",
    "bigcodebench": "rl_conductor_training.tasks.datasets.coding:bigcodebench",
    "composite": "rl_conductor_training.tasks.composite.questions:composite",
    "gpqa-diamond": "rl_conductor_training.tasks.datasets.multiple_choice:gpqa_diamond",
    "gsm8k": "rl_conductor_training.tasks.datasets.mathematics:gsm8k",
    "handwritten": "rl_conductor_training.tasks.composite.handwritten:handwritten",
    "jsonl": "rl_conductor_training.tasks.datasets.jsonl:jsonl",
    "livecodebench": "rl_conductor_training.tasks.datasets.coding:livecodebench",
    "math-500": "rl_conductor_training.tasks.datasets.mathematics:math_500",
    "mixture": "rl_conductor_training.tasks.mixture:mixture",
    "mmlu": "rl_conductor_training.tasks.datasets.multiple_choice:mmlu",
    "reasoning-gym": "rl_conductor_training.tasks.datasets.reasoning_gym:reasoning_gym",
    "rlpr": "rl_conductor_training.tasks.datasets.rlpr:rlpr",
}
"""Registry: task name to `module:function` of its loader."""
FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt")
"""Names that end in one of these are probably files."""


def load_task(name: str, *, limit: int | None = None, shuffle: int | None = None, **options: Any) -> Task:
    """Loads the task called `name`, such as `math-500`, `jsonl:my-tasks.jsonl` or `my_tasks:support`.

    Args:
        name: a task of `TASKS`, where the text after a colon is its first argument: a split, a file, a set's own name;
            or `module:name` of a task of your own, or of a function that returns one.
        limit: keep only the first `limit` samples.
        shuffle: seed of a random order, applied before `limit`.
        options: the other arguments of the task.

    Raises:
        ConfigError: the task does not exist, a library is missing, or its data is missing or has another shape.
    """
    loader, arguments = _find_loader(name)
    try:
        signature(loader).bind(*arguments, **options)
    except TypeError as error:
        raise ConfigError(f"task {name!r}: {error}; it takes {signature(loader)}") from error
    task = loader(*arguments, **options)
    task = task if shuffle is None else task.shuffled(shuffle)
    return task if limit is None else task.first(limit)


class TaskEntry(Value):
    """A task as written in a configuration file."""

    name: str
    """As for `load_task`, such as `composite:train`, `jsonl:my-tasks.jsonl` or `my_tasks:support`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The task's own arguments, such as `size` and `seed`."""
    limit: int | None = Field(default=None, ge=1)
    """Keep only the first `limit` samples."""
    shuffle: int | None = None
    """Seed of a random order, applied before `limit`."""

    @model_validator(mode="after")
    def _reject_misplaced_options(self) -> Self:
        for name in ("limit", "shuffle"):
            if name in self.options:
                raise ValueError(f"{name} is not an option of the task: write it beside options, not inside")
        return self

    def build(self) -> Task:
        """Loads the task of this entry."""
        return load_task(self.name, limit=self.limit, shuffle=self.shuffle, **self.options)

    def resolve_paths(self, folder: Path) -> Self:
        """Resolves the relative file paths of the task against `folder`."""
        name, options = resolve_task_paths(folder, self.name, self.options)
        return self.model_copy(update={"name": name, "options": options})


def resolve_task_paths(folder: Path, name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Resolves the relative file paths in a task's name and options against `folder`.

    Raises:
        ConfigError: the task does not exist, or a library is missing.
    """
    task_name, _, argument = name.partition(":")
    if task_name == "mixture":
        from rl_conductor_training.tasks import mixture  # noqa: PLC0415 (it imports this module)

        return name, mixture.resolve_part_paths(folder, options)
    loader, arguments = _find_loader(name)
    if arguments and next(iter(signature(loader).parameters)) == "path":
        name = f"{task_name}:{folder / Path(argument).expanduser()}"
    if isinstance(options.get("path"), str):
        options = {**options, "path": str(folder / Path(options["path"]).expanduser())}
    if isinstance(judge := options.get("judge"), str) and is_judge_file(judge):
        options = {**options, "judge": str(folder / Path(judge).expanduser())}
    return name, options


def _find_loader(name: str) -> tuple[Callable[..., Task], list[str]]:
    """Returns the function that loads a task, and its arguments in the name."""
    task_name, _, argument = name.partition(":")
    if task_name in TASKS:
        return import_object(TASKS[task_name]), [argument] if argument else []
    if argument.isidentifier():
        return own_task_loader(name), []
    if Path(name).is_dir():
        raise ConfigError(
            f"no task {name!r}: it is a folder; name a file of questions in JSON Lines, CSV or Parquet. One that the "
            f"library datasets saved becomes such a file by load_from_disk({name!r}).to_parquet('questions.parquet')"
        )
    if Path(name).suffix in FILE_SUFFIXES:
        cure = f"write 'jsonl:{name}' for the file" if Path(name).is_file() else "there is no such file"
        raise ConfigError(f"no task {name!r}: {cure}")
    raise ConfigError(
        f"no task {name!r}: write one of {', '.join(sorted(TASKS))}, one and its argument as in 'jsonl:FILE', or "
        "'module:function' for your own"
    )


__all__ = ["TASKS", "Sample", "Score", "Task", "TaskEntry", "load_task", "resolve_task_paths"]
