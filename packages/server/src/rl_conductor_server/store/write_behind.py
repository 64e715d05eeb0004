"""A queue for all database writes of this process, which one thread commits in batches.

Runs add their progress and continue without waiting; claims and heartbeats wait until theirs is committed. Transactions
are limited in size and time. If one fails, its writes are repeated one by one, so that only the failing write is lost.
`throttle` slows runs down as soon as the queue lags, so that an answer is on disk at most a second after it was sent.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from rl_conductor.errors import ConductorError
from rl_conductor_server.store.database import READ_ONLY, reason_of
from rl_conductor_server.store.runs.run_writer import RunWrite, RunWriter

log = logging.getLogger("rl_conductor_server.store")

T = TypeVar("T")

BATCH_DELAY = 0.1
"""Seconds that a write waits for others to share its transaction, unless a caller waits for it."""
MAX_LAG = 0.25
"""Age in seconds of the oldest uncommitted write above which runs wait for the queue, see `throttle`."""
MAX_BATCH_SIZE = 200
"""Maximum number of writes in one transaction."""
MAX_GROUP_SIZE = 50
"""Maximum number of run writes that share their statements."""
MAX_TRANSACTION_SECONDS = 0.25
"""Seconds after which a transaction is committed with the writes executed so far."""
COMMIT_TIMEOUT = 10.0
"""Seconds after which a caller that waits for its write gets a `StoreUnavailableError`."""
RETRY_DELAYS = (0.1, 0.2, *(0.5,) * 16)
"""Seconds to wait for an unavailable database before each retry; a restart of it takes several.

Once it is back, what was answered without it is on disk after the last of these delays: only a kill before loses that.
"""
MAX_SINGLE_ATTEMPTS = 3
"""Attempts at a single write that fails with a temporary error although the database is available."""
UNWRITABLE_STATES = (READ_ONLY, "53100", "58030")
"""Postgres's SQLSTATEs of a database that can only be read, of a full disk, and of an error of the disk."""
UNWRITABLE_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""SQLite's primary error codes of a full disk, and of one that has a quota, became read-only, or has an error."""
BUSY_LOOP_DELAY, MAX_LOOP_PAUSE = 0.005, 0.05
"""Seconds of delay that show that the event loop is busy, and seconds that it then stands still at most."""


class StoreUnavailableError(ConductorError):
    """The database does not answer or can't keep up, so nothing can be recorded at the moment."""


@dataclass(eq=False)
class _QueuedWrite(Generic[T]):
    write: RunWrite | Callable[[Connection], T]
    queued_at: float
    committed: asyncio.Future[T] | None = None
    """Receives the result of the write once it is committed; `None` if no caller waits for it."""


class WriteBehindQueue:
    """Commits writes in the order in which they were added, except those that are urgent."""

    def __init__(self, engine: Engine, run_writer: RunWriter, *, on_lost: Callable[[], None]) -> None:
        """Creates an empty queue.

        Args:
            engine: a connection to the database for writing.
            run_writer: executes the writes of runs.
            on_lost: called for each write that is given up.
        """
        self._engine = engine
        self._run_writer = run_writer
        self._on_lost = on_lost
        self._pending: deque[_QueuedWrite[object]] = deque()
        self._urgent: deque[_QueuedWrite[object]] = deque()
        """Writes for the next transaction, whatever waits in `_pending` and in `_batch`."""
        self._batch: deque[_QueuedWrite[object]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._is_awaited = asyncio.Event()
        self._closing = False

    # ------------------------------------------------------------------------------------ adding writes

    def add(self, write: RunWrite | Callable[[Connection], object]) -> None:
        """Queues a write without waiting for it."""
        self._enqueue(write, None)

    async def execute(
        self,
        write: Callable[[Connection], T],
        *,
        undo: Callable[[T], None] | None = None,
        is_urgent: bool = False,
    ) -> T:
        """Queues a write, waits until it and all earlier ones are committed, and returns its result.

        Args:
            write: executes statements in the queue's transaction; it may be called again after a failure.
            undo: called with the result if the caller was cancelled while the write was being committed.
            is_urgent: commits it before all others, because it does not depend on them.

        Raises:
            StoreUnavailableError: the database does not answer in time.
        """
        self.check_available()  # waiting as long again would not help
        committed: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        entry = self._enqueue(write, committed, is_urgent=is_urgent)
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT):
                return await asyncio.shield(committed)
        except TimeoutError:
            raise StoreUnavailableError(
                f"the store did not answer within {COMMIT_TIMEOUT:g} s; try again later"
            ) from None
        finally:
            if not committed.done():
                self._withdraw(entry, undo)

    async def flush(self) -> None:
        """Waits until all writes added so far are committed, or lost and logged; raises like `execute`."""
        if self._pending or self._batch:
            await self.execute(lambda _: None)

    def check_available(self) -> None:
        """Raises `StoreUnavailableError` if the database took no writes for `COMMIT_TIMEOUT`, as on a full disk."""
        if self.lag > COMMIT_TIMEOUT:
            raise StoreUnavailableError(f"the store has not answered for {self.lag:.0f} s; try again later")

    async def throttle(self) -> None:
        """Applies backpressure: waits for the queue if it lags by more than `MAX_LAG`; raises like `execute`."""
        if self.lag > MAX_LAG:
            await self.flush()

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest write that is not committed."""
        queue = self._batch or self._pending
        return time.monotonic() - queue[0].queued_at if queue else 0.0

    async def aclose(self) -> None:
        """Commits the queued writes, if the database answers, and stops the thread."""
        with suppress(StoreUnavailableError):
            await self.flush()
        self._closing = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=COMMIT_TIMEOUT)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._batch.extend(self._pending)
        while self._batch:
            self._give_up_first(StoreUnavailableError("the store was closed"))
        await asyncio.to_thread(self._thread.shutdown)
        self._engine.dispose()

    def _enqueue(
        self,
        write: RunWrite | Callable[[Connection], T],
        committed: asyncio.Future[T] | None,
        *,
        is_urgent: bool = False,
    ) -> _QueuedWrite[T]:
        age = self.lag if is_urgent else 0.0  # so that the lag stays that of the writes that it overtakes
        entry = _QueuedWrite(write, time.monotonic() - age, committed)
        (self._urgent if is_urgent else self._pending).append(entry)  # type: ignore[arg-type]
        if committed is not None:
            self._is_awaited.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._commit_pending(), name="write-behind")
        return entry

    def _withdraw(self, entry: _QueuedWrite[T], undo: Callable[[T], None] | None) -> None:
        """Drops a write that its caller no longer waits for, or undoes it once it is committed."""
        assert entry.committed is not None
        for queue in (self._pending, self._urgent):
            if entry in queue:
                queue.remove(entry)  # type: ignore[arg-type]
                return

        def undo_committed(committed: asyncio.Future[T]) -> None:
            if not committed.cancelled() and committed.exception() is None and undo is not None:
                undo(committed.result())

        entry.committed.add_done_callback(undo_committed)

    # --------------------------------------------------------------------------------------- committing

    async def _commit_pending(self) -> None:
        while self._pending or self._urgent:
            if not self._urgent and not any(entry.committed for entry in self._pending):
                with suppress(TimeoutError):
                    async with asyncio.timeout(BATCH_DELAY - self.lag):
                        await self._is_awaited.wait()
            self._is_awaited.clear()
            self._batch.extend(self._pending.popleft() for _ in range(min(MAX_BATCH_SIZE, len(self._pending))))
            while self._batch or self._urgent:
                self._batch.extendleft(self._urgent)
                self._urgent.clear()
                await self._commit_batch()

    async def _commit_batch(self) -> None:
        """Commits as many writes of the batch as fit into one transaction; if that fails for good, one at a time."""
        for delay in RETRY_DELAYS:
            try:
                results = await self._commit(self._batch)
            except (OperationalError, InterfaceError) as error:
                log.warning("the store is unavailable (%s); retrying in %g s", reason_of(error), delay)
                await asyncio.sleep(0 if self._closing else delay)
            except Exception as error:  # whichever write it was, the others must not be lost with it
                log.warning("a transaction of %d writes failed: %s", len(self._batch), type(error).__name__)
                break
            else:
                for result in results:
                    self._complete_first(result)
                return
        for _ in range(len(self._batch)):
            await self._commit_first()

    async def _commit_first(self) -> None:
        """Commits the first write of the batch in its own transaction; gives up if the database works and it fails."""
        attempts = 0
        while True:
            try:
                (result,) = await self._commit([self._batch[0]])
            except (OperationalError, InterfaceError) as error:
                is_available = not _is_unwritable(error) and await self._is_database_available()
                attempts += is_available
                if self._closing or attempts >= MAX_SINGLE_ATTEMPTS:
                    return self._give_up_first(error)
                await asyncio.sleep(RETRY_DELAYS[0] if is_available else RETRY_DELAYS[-1])
            except Exception as error:
                return self._give_up_first(error)
            else:
                return self._complete_first(result)

    def _complete_first(self, result: object) -> None:
        committed = self._batch.popleft().committed
        if committed is not None and not committed.done():
            committed.set_result(result)

    def _give_up_first(self, error: Exception) -> None:
        """Drops the first write of the batch and raises the error in its caller; without one, logs and counts it."""
        entry = self._batch.popleft()
        if entry.committed is None:
            self._on_lost()
            log.error("1 write to the store is lost (%s): %s", _describe(entry.write), type(error).__name__)
        elif not entry.committed.done():
            is_temporary = isinstance(error, OperationalError | InterfaceError)
            unavailable = StoreUnavailableError("the store could not write; try again later")
            entry.committed.set_exception(unavailable if is_temporary else error)

    # --------------------------------------------------------------------------------------- the thread

    async def _commit(self, entries: Sequence[_QueuedWrite[object]]) -> list[object]:
        """Commits as many of the first entries as time allows and returns their results."""
        writes = [entry.write for entry in entries]
        return await self._run_in_thread(lambda: self._execute_transaction(writes))

    def _execute_transaction(self, writes: Sequence[RunWrite | Callable[[Connection], object]]) -> list[object]:
        deadline = time.monotonic() + MAX_TRANSACTION_SECONDS
        results: list[object] = []
        with self._engine.begin() as connection:
            while len(results) < len(writes) and (not results or time.monotonic() < deadline):
                write = writes[len(results)]
                if isinstance(write, RunWrite):
                    rest = writes[len(results) :][:MAX_GROUP_SIZE]
                    group = takewhile(lambda other: isinstance(other, RunWrite), rest)
                    results += self._run_writer.write(
                        connection, [other for other in group if isinstance(other, RunWrite)]
                    )
                else:
                    results.append(write(connection))
        return results

    async def _is_database_available(self) -> bool:
        def probe() -> bool:
            with self._engine.begin() as connection:
                connection.execute(text("SELECT 1"))
            return True

        try:
            return await self._run_in_thread(probe)
        except (OperationalError, InterfaceError):
            return False

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in the queue's thread, pausing the event loop for a moment if that is busy.

        A busy event loop starves other threads: whenever one of them releases the interpreter lock to execute a
        statement, it gets the lock back only when the loop has nothing to do.
        """
        running: Future[T] = self._thread.submit(work)
        result = asyncio.wrap_future(running)
        started = time.monotonic()
        await asyncio.wait({result}, timeout=BUSY_LOOP_DELAY)
        is_busy = time.monotonic() - started > BUSY_LOOP_DELAY * 1.5
        if is_busy and not running.done():
            with suppress(TimeoutError):
                running.exception(timeout=MAX_LOOP_PAUSE)
        return await result


def _is_unwritable(error: DBAPIError) -> bool:
    """Returns `True` if the disk takes no writes: the database still answers, and commits what takes no space."""
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # the other bits say which operation failed
    return code in UNWRITABLE_CODES or getattr(error.orig, "sqlstate", None) in UNWRITABLE_STATES


def _describe(write: object) -> str:
    """Names a write in the log, so that an operator can find its run."""
    return f"{type(write).__name__} {write.run}" if isinstance(write, RunWrite) else "not of a run"
