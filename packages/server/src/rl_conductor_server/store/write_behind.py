"""The one writer of a store: every write of this process goes through it, grouped into transactions by one thread.

Runs add what they report and go on; claims and heartbeats wait for theirs to be committed. A transaction is limited in
size and time. When a write fails, its transaction is repeated write by write, so that only the failing one is lost.
`pace` slows runs down as soon as the writer lags behind them: what a client was told is on disk within a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import InterfaceError, OperationalError

from rl_conductor.errors import ConductorError
from rl_conductor_server.store.writer import RunWrite, RunWriter

log = logging.getLogger("rl_conductor_server.store")

T = TypeVar("T")

LINGER = 0.02
"""Seconds that a write waits for others to share its transaction, unless somebody waits for it."""
MAX_LAG = 0.25
"""Seconds that the oldest write may wait before runs have to wait for the writer, see `Journal.pace`."""
MAX_WRITES = 200
"""Most writes of one transaction."""
MAX_GROUP = 50
"""Most writes of runs that share their statements."""
MAX_SECONDS = 0.25
"""Seconds after which a transaction is committed with the writes that it has by then."""
PATIENCE = 10.0
"""Seconds to wait for a write before its caller is told that the store does not answer."""
PAUSES = (0.1, 0.5, 2.0, 2.0, 2.0, 2.0)
"""Seconds to wait for a database that is away, before each further attempt: a restart of it takes several."""
ATTEMPTS_ALONE = 3
"""Attempts at a single write that a working database refuses for a reason that may pass."""
LEND_AFTER, LEND_FOR = 0.005, 0.05
"""Seconds after which a busy event loop stands still for the writer's thread, and for how long at most."""


class StoreAwayError(ConductorError):
    """The database does not answer, or can't keep up: nothing can be recorded now."""


@dataclass(eq=False)
class _Entry(Generic[T]):
    """A write in the queue."""

    write: RunWrite | Callable[[Connection], T]
    added: float
    done: asyncio.Future[T] | None = None
    """Gets what the write returns once it is committed; `None` when nobody waits for it."""


class Journal:
    """Writes on their way to the database, in the order in which they were added."""

    def __init__(self, engine: Engine, runs: RunWriter, *, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called for each write that is given up."""
        self._engine = engine
        self._runs = runs
        self._on_lost = on_lost
        self._pending: deque[_Entry[object]] = deque()
        self._writing: deque[_Entry[object]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._hurry = asyncio.Event()
        self._closing = False

    # --------------------------------------------------------------------------------- adding writes

    def add(self, write: RunWrite | Callable[[Connection], object]) -> None:
        """Queue a write that nobody waits for."""
        self._enqueue(write, None)

    async def run(self, write: Callable[[Connection], T], *, undo: Callable[[T], None] | None = None) -> T:
        """The result of a write, once it and all that was added before are committed.

        Args:
            write: executes statements in the writer's transaction; it may be called again after a failure.
            undo: called with the result when the caller was cancelled while the write was being committed.

        Raises:
            StoreAwayError: the database does not answer in time.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        entry = self._enqueue(write, done)
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(done)
        except TimeoutError:
            raise StoreAwayError(f"the store did not answer within {PATIENCE:g} s; try again later") from None
        finally:
            if not done.done():
                self._withdraw(entry, undo)

    async def flush(self) -> None:
        """Wait until all that was added before is committed, or lost and logged; see `run`."""
        if self._pending or self._writing:
            await self.run(lambda _: None)

    async def pace(self) -> None:
        """Wait for the writer if it lags by more than `MAX_LAG`: backpressure on whoever adds writes; see `run`."""
        if self.lag > MAX_LAG:
            await self.flush()

    @property
    def lag(self) -> float:
        """Seconds since the oldest write that is not committed was added."""
        queue = self._writing or self._pending
        return time.monotonic() - queue[0].added if queue else 0.0

    async def aclose(self) -> None:
        """Write what is queued, as far as the database answers, and end the thread."""
        with suppress(StoreAwayError):
            await self.flush()
        self._closing = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=PATIENCE)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._writing.extend(self._pending)
        while self._writing:
            self._lose(StoreAwayError("the store was closed"))
        await asyncio.to_thread(self._thread.shutdown)
        self._engine.dispose()

    def _enqueue(self, write: RunWrite | Callable[[Connection], T], done: asyncio.Future[T] | None) -> _Entry[T]:
        entry = _Entry(write, time.monotonic(), done)
        self._pending.append(entry)  # type: ignore[arg-type]
        if done is not None:
            self._hurry.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all(), name="journal")
        return entry

    def _withdraw(self, entry: _Entry[T], undo: Callable[[T], None] | None) -> None:
        """Nobody waits for this write any more: drop it, or undo it once it is committed."""
        assert entry.done is not None
        if entry in self._pending:
            self._pending.remove(entry)  # type: ignore[arg-type]
            return

        def committed(done: asyncio.Future[T]) -> None:
            if not done.cancelled() and done.exception() is None and undo is not None:
                undo(done.result())

        entry.done.add_done_callback(committed)

    # ------------------------------------------------------------------------------------- writing

    async def _write_all(self) -> None:
        while self._pending:
            if not any(entry.done for entry in self._pending):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), LINGER)
            self._hurry.clear()
            self._writing.extend(self._pending.popleft() for _ in range(min(MAX_WRITES, len(self._pending))))
            while self._writing:
                await self._write_together()

    async def _write_together(self) -> None:
        """Write what fits into one transaction; when that fails for good, each write in one of its own."""
        for pause in PAUSES:
            try:
                results = await self._commit(self._writing)
            except (OperationalError, InterfaceError) as away:
                log.warning("the store is away (%s); the next attempt is in %g s", type(away.orig).__name__, pause)
                await asyncio.sleep(0 if self._closing else pause)
            except Exception as error:  # whichever write it was, the others must not be lost with it
                log.warning("a transaction of %d writes failed: %s", len(self._writing), type(error).__name__)
                break
            else:
                for result in results:
                    self._settle(result)
                return
        for _ in range(len(self._writing)):
            await self._write_alone()

    async def _write_alone(self) -> None:
        """Write the next entry in a transaction of its own; give it up if that fails while the database works."""
        attempts = 0
        while True:
            try:
                (result,) = await self._commit([self._writing[0]])
            except (OperationalError, InterfaceError) as error:
                answers = await self._answers()
                attempts += answers
                if self._closing or attempts >= ATTEMPTS_ALONE:
                    return self._lose(error)
                await asyncio.sleep(PAUSES[0] if answers else PAUSES[-1])
            except Exception as error:
                return self._lose(error)
            else:
                return self._settle(result)

    def _settle(self, result: object) -> None:
        """The next entry is committed."""
        done = self._writing.popleft().done
        if done is not None and not done.done():
            done.set_result(result)

    def _lose(self, error: Exception) -> None:
        """The next entry is given up: tell whoever waits for it, else count it."""
        entry = self._writing.popleft()
        if entry.done is None:
            self._on_lost()
            log.error("1 write to the store is lost (%s): %s", _name_of(entry.write), type(error).__name__)
        elif not entry.done.done():
            entry.done.set_exception(error)

    # ----------------------------------------------------------------------------------- the thread

    async def _commit(self, entries: Sequence[_Entry[object]]) -> list[object]:
        """Commit as many of the first entries as time allows; what each returned."""
        writes = [entry.write for entry in entries]
        return await self._in_thread(lambda: self._transaction(writes))

    def _transaction(self, writes: Sequence[RunWrite | Callable[[Connection], object]]) -> list[object]:
        deadline = time.monotonic() + MAX_SECONDS
        results: list[object] = []
        with self._engine.begin() as connection:
            while len(results) < len(writes) and (not results or time.monotonic() < deadline):
                write = writes[len(results)]
                if isinstance(write, RunWrite):
                    group = takewhile(lambda one: isinstance(one, RunWrite), writes[len(results) :][:MAX_GROUP])
                    results += self._runs.write(connection, [one for one in group if isinstance(one, RunWrite)])
                else:
                    results.append(write(connection))
        return results

    async def _answers(self) -> bool:
        """Whether the database takes transactions."""

        def probe() -> bool:
            with self._engine.begin() as connection:
                connection.execute(text("SELECT 1"))
            return True

        try:
            return await self._in_thread(probe)
        except (OperationalError, InterfaceError):
            return False

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """The result of `work` in the writer's thread.

        A busy event loop starves other threads: each time one of them gives up the interpreter for a statement, it
        gets it back only when the loop has nothing to do. So a loop that is late itself stands still for a moment.
        """
        running: Future[T] = self._thread.submit(work)
        waiting = asyncio.wrap_future(running)
        began = time.monotonic()
        await asyncio.wait({waiting}, timeout=LEND_AFTER)
        is_busy = time.monotonic() - began > LEND_AFTER * 1.5
        if is_busy and not running.done():
            with suppress(TimeoutError):
                running.exception(timeout=LEND_FOR)
        return await waiting


def _name_of(write: object) -> str:
    """What an operator may look for in the log."""
    return f"{type(write).__name__.lower()} of {write.run}" if isinstance(write, RunWrite) else "no run's"
