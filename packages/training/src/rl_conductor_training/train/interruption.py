"""Ctrl-C during a training: the first ends it after the current step, the second at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "Ctrl-C"
"""Why a call ended early that was interrupted."""
log = logging.getLogger("rl_conductor_training.train")


class Interruption:
    """Notes Ctrl-C instead of raising `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.is_requested = False
        """Whether Ctrl-C was pressed."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Waits for Ctrl-C in the block; does nothing in other threads, or in a program that handles it itself."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.is_requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log.warning("stopping with a checkpoint after the current step; Ctrl-C again stops at once")
