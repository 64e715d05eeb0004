"""Output folders of runs that resume: one process at a time writes to each."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rl_conductor._internal.io import writing_errors
from rl_conductor.errors import ConfigError

LOCK_FILE = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder until the block ends, so that they don't pay for the same calls.

    The folder is created; it is removed again if the block wrote nothing.

    Raises:
        ConfigError: another process uses the folder, it can't be written to, or it is a file.
    """
    check_folder(folder)
    is_new = not folder.exists()
    # A singleton may be locked by nested blocks.
    lock = FileLock(folder / LOCK_FILE, timeout=0, is_singleton=True)
    with writing_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise ConfigError(
                f"another process writes to {str(folder)!r}; wait until it ends, or name another folder with --out"
            ) from None
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # an error of the block matters more
                _remove_unused(folder)
        lock.release()


def check_folder(folder: Path) -> None:
    """Checks that a path is, or can become, a folder that this process may write to. Nothing is written.

    Raises:
        ConfigError: it is a file, or can't be written to.
    """
    if folder.is_file():
        raise ConfigError(f"{str(folder)!r} is a file; name a folder with --out")
    with writing_errors(folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{str(existing)!r} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"no permission to write in {str(existing)!r}")


def _remove_unused(folder: Path) -> None:
    """Removes a folder that contains empty files only."""
    files = list(folder.iterdir())
    if all(path.is_file() and not path.stat().st_size for path in files):
        for path in files:
            path.unlink(missing_ok=True)
        folder.rmdir()
