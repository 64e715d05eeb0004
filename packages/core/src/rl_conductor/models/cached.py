"""`CachedModel`: remembers every reply of another model on disk, so that a run can be repeated for free.

A reply is found again by the model's name, the request (messages, tools, format, sampling) and the `version`. The marks
of fences, which are drawn anew for each run, don't count, and neither does the timeout. So asking the same thing twice
gives the same reply even at a high temperature: give `Sampling.seed` different values for replies that shall differ.

A reply from the cache carries the usage of the call that made it, so that limits, tables and rewards come out as they
did then; `Usage.cached_calls` says how many of the `calls` were in truth not made again, and `cached_seconds` how much
longer those took. Failures are not kept. A reply that another release kept in a form that this one can't read counts as
none: the model is asked again, and the new reply takes its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from pydantic import ValidationError

from rl_conductor._internal.sync import PerLoop
from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Model, WrapperModel
from rl_conductor.text.delimiters import without_marks
from rl_conductor.types import Completion, Delta, Request

BUSY_SECONDS = 30.0
"""How long to wait for other processes that write to the same file."""


class CachedModel(WrapperModel):
    """Another model, asked only what it was not asked before. Any number of processes may share the file."""

    def __init__(self, model: Model, path: str | Path, *, version: str = "") -> None:
        """Open the cache, or start one.

        Args:
            model: who is asked what is not known yet.
            path: an SQLite file, made when it is not there.
            version: whatever shapes the replies and is not in the model's name, such as a hash of its weights.

        Raises:
            ConfigError: the file can't be made or is no such cache.
        """
        super().__init__(model)
        self._file = Path(path).expanduser()
        self._version = version
        self._asking: PerLoop[WeakValueDictionary[str, asyncio.Lock]] = PerLoop(WeakValueDictionary)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as table:
                table.execute("PRAGMA journal_mode = WAL")
                table.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, completion TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{str(path)!r} can't be a cache of replies: {error}; name a new file") from error

    async def complete(self, request: Request) -> Completion:
        """The reply as it is remembered; else the model's, from now on remembered."""
        key, asked = self._key(request), time.monotonic()
        async with self._turn(key):
            waited = time.monotonic() - asked
            known = await asyncio.to_thread(self._find, key)
            if known is None:
                began = time.monotonic()
                known = await self.model.complete(request)
                await asyncio.to_thread(self._keep, key, known, time.monotonic() - began)
                return known
        return _from_cache(known, waited)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """A remembered reply in one piece; else the model's, remembered once it is whole."""
        key, asked = self._key(request), time.monotonic()
        async with self._turn(key):
            waited = time.monotonic() - asked
            known = await asyncio.to_thread(self._find, key)
            if known is None:
                began = time.monotonic()
                async with aclosing(self.model.stream(request)) as deltas:
                    async for delta in deltas:
                        if delta.completion is not None:
                            await asyncio.to_thread(self._keep, key, delta.completion, time.monotonic() - began)
                        yield delta
                return
        yield Delta(text=known.text)
        yield Delta(completion=_from_cache(known, waited))

    def _key(self, request: Request) -> str:
        asked = without_marks(request.model_dump_json(exclude={"timeout"}))
        return hashlib.sha256("\0".join((self.name, self._version, asked)).encode()).hexdigest()

    def _turn(self, key: str) -> asyncio.Lock:
        """Held while `key` is asked, so that those who ask the same meanwhile wait for the one reply."""
        return self._asking.get().setdefault(key, asyncio.Lock())

    def _find(self, key: str) -> Completion | None:
        with self._open() as table:
            row = table.execute("SELECT completion FROM replies WHERE key = ?", (key,)).fetchone()
        try:
            return None if row is None else Completion.model_validate_json(row[0])
        except ValidationError:  # to refuse it here would fail a step, and another worker would silently stand in
            return None

    def _keep(self, key: str, completion: Completion, seconds: float) -> None:
        usage = completion.usage.model_copy(update={"cached_seconds": seconds})
        completion = completion.model_copy(update={"usage": usage})
        with self._open() as table:
            table.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, completion.model_dump_json()))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=BUSY_SECONDS)) as connection, connection:
            yield connection


def _from_cache(completion: Completion, waited: float) -> Completion:
    used = completion.usage
    spared = max(used.cached_seconds - waited, 0.0)  # who waited for the call has these seconds in its own
    usage = used.model_copy(update={"cached_calls": used.calls, "cached_seconds": spared})
    return completion.model_copy(update={"usage": usage})
