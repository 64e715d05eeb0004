"""Tasks that users write in Python: `module:name` of a `Task`, or of a function that returns one."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path

from rl_conductor._internal.imports import import_object
from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Task


def own_task_loader(path: str) -> Callable[..., Task]:
    """Returns the function that loads the task at `module:name`, with the signature of the user's own function.

    Its samples have a hash of the module's source in `details`: stored results are keyed by samples, so a changed
    scorer scores replies again.

    Raises:
        ConfigError: it can't be imported, or is neither a task nor a function.
    """
    target = import_object(path)
    source = hash_source(path.partition(":")[0])
    if isinstance(target, Task):
        return lambda: _with_source(target, source)
    if not callable(target) or isinstance(target, type):
        raise ConfigError(f"{path!r} is neither a Task nor a function that returns one")

    @wraps(target)
    def load(*arguments: object, **options: object) -> Task:
        task = target(*arguments, **options)
        if inspect.iscoroutine(task):
            task.close()
        if not isinstance(task, Task):
            raise ConfigError(f"{path!r} returned {type(task).__name__} instead of a Task")
        return _with_source(task, source)

    return load


def hash_source(module: str) -> str:
    """Hashes the file of an imported module, 16 hex digits; empty for a module without a file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def _with_source(task: Task, source: str) -> Task:
    samples = (sample.model_copy(update={"details": {**sample.details, "source": source}}) for sample in task.samples)
    return replace(task, samples=tuple(samples))
