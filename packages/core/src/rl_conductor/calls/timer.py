"""`CallTimer`: the one timer of a model call, for the run's deadline and the request's own timeout."""

from __future__ import annotations

import asyncio
import threading
from math import inf
from types import TracebackType
from typing import Self


class CallTimer:
    """Cancels the block of a `with` statement when its time is over, which then raises `TimeoutError`.

    `asyncio.timeout` takes several times as long. Unlike with that, a block that turns its cancellation by others into
    an error or a result is cancelled all the same.
    """

    __slots__ = ("_alarm", "_cancellations", "_task", "end", "expired")

    def __init__(self, end: float | None) -> None:
        """`end` is on the event loop's clock; without one, the time is never over."""
        task = asyncio.current_task()
        assert task is not None
        self.end = inf if end is None else end
        self.expired = False
        self._alarm = _alarm()
        self._task = task
        self._cancellations = task.cancelling()  # a task that is being cancelled may call models to clean up

    def __enter__(self) -> Self:
        self._alarm.add(self)
        return self

    def limit(self, seconds: float) -> None:
        """Moves the end to `seconds` from now, if that is earlier."""
        end = self._alarm.loop.time() + seconds
        if end < self.end:
            self.end = end
            self._alarm.add(self)

    def expire(self) -> None:
        """Cancels the block; `__exit__` then raises `TimeoutError`."""
        self.expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._alarm.timers.discard(self)
        if self.expired and self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error
        if self._task.cancelling() > self._cancellations and kind is not asyncio.CancelledError:
            raise asyncio.CancelledError


class _Alarm:
    """Lets the timers of an event loop expire. One handle of the loop, at the earliest end, serves all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.timers = set[CallTimer]()
        self._time = inf
        self._handle: asyncio.TimerHandle | None = None

    def add(self, timer: CallTimer) -> None:
        """Lets `timer` expire at its end, unless it is discarded before."""
        self.timers.add(timer)
        if timer.end < self._time:
            self._set(timer.end)

    def _set(self, time: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._time = time
        self._handle = None if time == inf else self.loop.call_at(time, self._ring)

    def _ring(self) -> None:
        now = max(self._time, self.loop.time())  # a late ring is for all that have ended until now
        over = [timer for timer in self.timers if timer.end <= now]
        self.timers.difference_update(over)
        self._set(min([timer.end for timer in self.timers], default=inf))
        for timer in over:
            timer.expire()


class _Alarms(threading.local):
    current: _Alarm | None = None


_alarms = _Alarms()


def _alarm() -> _Alarm:
    """Returns the alarm of the running event loop."""
    loop, alarm = asyncio.get_running_loop(), _alarms.current
    if alarm is None or alarm.loop is not loop:
        alarm = _alarms.current = _Alarm(loop)
    return alarm
