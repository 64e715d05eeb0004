"""Reports the current activity of a training run between the metrics of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Status(NamedTuple):
    """The current work of a training run."""

    stage: str
    """Such as `loading the model` or `step 3: running plans`."""
    completed: int = 0
    total: int = 0
    """0 where the amount of work is unknown."""


@dataclass
class TrainProgress:
    """Calls `on_status` with each change. Thread-safe, because plans are run on another thread than the trainer's."""

    on_status: Callable[[Status], None] = lambda _status: None
    _status: Status = field(default=Status(""), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def begin(self, stage: str, total: int = 0) -> None:
        """Begins a stage of `total` pieces of work, or of an unknown number of them."""
        self._set(lambda _status: Status(stage, 0, total))

    def advance(self, count: int = 1) -> None:
        """Adds finished work to the current stage; ignored where its amount is unknown."""
        self._set(lambda status: status._replace(completed=min(status.completed + count, status.total)))

    def _set(self, change: Callable[[Status], Status]) -> None:
        with self._lock:
            changed = change(self._status)
            if changed != self._status:
                self._status = changed
                self.on_status(changed)
