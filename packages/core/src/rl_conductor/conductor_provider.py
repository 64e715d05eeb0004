"""`conductor:FILE`: the conductor of a pool file as a model, so that pool files can name one as a worker."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path

from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import discover
from rl_conductor.errors import ConfigError

_open_files: ContextVar[tuple[Path, ...]] = ContextVar("open_files", default=())
"""The pool files that are being read, from the outermost one."""


def conductor_from_file(path: str, *, profile: str | None = None) -> Conductor:
    """Creates the conductor of a pool file; `model("conductor:FILE")` calls this.

    Raises:
        ConfigError: the file is invalid, or it names itself as a worker, directly or through other files.
    """
    file, open_files = Path(path).resolve(), _open_files.get()
    if file in open_files:
        circle = " -> ".join(str(name) for name in (*open_files[open_files.index(file) :], file))
        raise ConfigError(f"pool files name one another in a circle: {circle}; remove one of these workers")
    token = _open_files.set((*open_files, file))
    try:
        return Conductor.from_discovered(discover(pool_file=file), profile=profile, name=file.stem)
    finally:
        _open_files.reset(token)
