"""Temporary folders in memory, where the system has some: databases of tests then wait for no busy disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
MIN_FREE = 2**30
"""Bytes; containers often have only 64 MB there."""


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yields an empty folder that is removed afterwards."""
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MIN_FREE
    with tempfile.TemporaryDirectory(prefix="rl-conductor-", dir=MEMORY if has_room else None) as folder:
        yield Path(folder)
