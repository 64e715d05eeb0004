"""`NestedRuns`: the runs in progress inside of one model call, which end with it although a thread began them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from rl_conductor.calls.budget import Amount, Budget
from rl_conductor.errors import LimitError

CLEANUP_SECONDS = 1.0
"""Maximum time that cancelled runs get to end, so that their calls are recorded."""


class NestedRuns:
    """The runs in progress inside of one model call.

    Cancelling the call cancels the coroutines in it, but no thread: a function that is not async goes on, and so would
    a run that it waits for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Future[None], tuple[asyncio.Task[object], Budget]] = {}
        self._is_cancelled = False

    @contextmanager
    def track(self, budget: Budget) -> Iterator[None]:
        """Keeps the run of the current task, which spends from `budget`, until the block ends.

        Raises:
            LimitError: the call was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        ended: Future[None] = Future()
        with self._lock:
            if self._is_cancelled:
                raise LimitError("the call around this run was cancelled", limit="calls", needed=1, remaining=0)
            self._runs[ended] = task, budget
        try:
            yield
        finally:
            with self._lock:
                del self._runs[ended]
            ended.set_result(None)

    async def cancel(self) -> None:
        """Cancels the runs, and those that begin later, and waits briefly until they have ended."""
        with self._lock:
            self._is_cancelled = True
            runs = dict(self._runs)
        for task, _ in runs.values():
            with suppress(RuntimeError):  # its event loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
        if runs:
            await asyncio.wait([asyncio.wrap_future(ended) for ended in runs], timeout=CLEANUP_SECONDS)

    def close(self) -> list[Amount]:
        """Refuses further calls of the runs in progress, and returns the maximum that each can have spent."""
        with self._lock:
            budgets = [budget for _, budget in self._runs.values()]
        for budget in budgets:
            budget.close()
        return [budget.spent + budget.reserved for budget in budgets]
