"""`CallTimer`: the one timer of a model call, for the run's deadline and the request's own timeout."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class CallTimer:
    """Cancels the block of a `with` statement when its time is over, which then raises `TimeoutError`.

    `asyncio.timeout` takes nearly twice as long. Unlike with that, a block that turns its cancellation by others into
    an error or a result is cancelled all the same.
    """

    __slots__ = ("_cancellations", "_handle", "_loop", "_task", "end", "expired")

    def __init__(self, end: float | None) -> None:
        """`end` is on the event loop's clock; without one, the time is never over."""
        task = asyncio.current_task()
        assert task is not None
        self.end = end
        self.expired = False
        self._loop = asyncio.get_running_loop()
        self._task = task
        self._cancellations = task.cancelling()  # a task that is being cancelled may call models to clean up
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self.end is not None:
            self._handle = self._loop.call_at(self.end, self._expire)
        return self

    def limit(self, seconds: float) -> None:
        """Moves the end to `seconds` from now, if that is earlier."""
        end = self._loop.time() + seconds
        if self.end is not None and self.end <= end:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.end = end
        self._handle = self._loop.call_at(end, self._expire)

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self.expired and self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error
        if self._task.cancelling() > self._cancellations and kind is not asyncio.CancelledError:
            raise asyncio.CancelledError
