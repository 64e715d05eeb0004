"""`CachedModel`: caches the replies of another model on disk, so that a run can be repeated for free.

The cache key consists of the model's name, the request (messages, tools, format, sampling) and the `version`. Random
nonces of delimiters and the timeout are left out. The same request therefore gets the same reply even at a high
temperature; set different values of `Sampling.seed` to get different replies.

A cached reply carries the tokens of the original call at the present price, so that limits, tables and rewards come out
as if it were called; `Usage.cached_calls` counts the `calls` that came from the cache, and `cached_seconds` the time
they saved. Failures are not cached, nor are replies that end after their reasoning: those are asked for again. An entry
that this release can't parse is treated as a miss and overwritten. A file that can't be read or written is logged, and
the model answers without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from decimal import Decimal
from pathlib import Path
from weakref import WeakValueDictionary

from pydantic import ValidationError

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Model, WrapperModel
from rl_conductor.models.prices import priced
from rl_conductor.text.delimiters import strip_nonces
from rl_conductor.text.reasoning import split_reasoning
from rl_conductor.types import Completion, Delta, Request, Usage, total

log = logging.getLogger("rl_conductor")

BUSY_SECONDS = 30.0
"""Timeout in seconds for locks that other processes hold on the database file."""


class CachedModel(WrapperModel):
    """Wraps a model with a persistent cache. Any number of processes may share the file."""

    def __init__(
        self, model: Model, path: str | Path, *, version: str = "", on_reply: Callable[[float], None] | None = None
    ) -> None:
        """Opens the cache, or creates it.

        Args:
            model: the model to call on a cache miss.
            path: an SQLite file; created if missing.
            version: anything else that determines the replies, such as a hash of the weights.
            on_reply: called for each reply with the seconds of its call, also if it comes from the cache.

        Raises:
            ConfigError: the file can't be created or is not a cache.
        """
        super().__init__(model)
        self._path = Path(path).expanduser()
        self._version = version
        self._on_reply = on_reply or (lambda _seconds: None)
        self._locks: PerLoop[WeakValueDictionary[str, asyncio.Lock]] = PerLoop(WeakValueDictionary)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as table:
                table.execute("PRAGMA journal_mode = WAL")
                table.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, completion TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{str(path)!r} can't be used as a cache: {error}; choose another file") from error

    async def complete(self, request: Request) -> Completion:
        """Returns the cached reply, or calls the model and caches its reply."""
        key, started = self._key(request), time.monotonic()
        async with self._lock(key):
            waited = time.monotonic() - started
            completion = await asyncio.to_thread(self._load, key)
            if completion is None:
                call_started = time.monotonic()
                completion = await self.model.complete(request)
                seconds = time.monotonic() - call_started
                await asyncio.to_thread(self._save, key, completion, seconds)
                self._on_reply(seconds)
                return completion
        self._on_reply(completion.usage.cached_seconds)
        return self._from_cache(completion, waited)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields a cached reply in one piece, or streams from the model and caches the complete reply."""
        key, started = self._key(request), time.monotonic()
        async with self._lock(key):
            waited = time.monotonic() - started
            completion = await asyncio.to_thread(self._load, key)
            if completion is None:
                call_started = time.monotonic()
                async with aclosing(self.model.stream(request)) as deltas:
                    async for delta in deltas:
                        if delta.completion is not None:
                            seconds = time.monotonic() - call_started
                            await asyncio.to_thread(self._save, key, delta.completion, seconds)
                            self._on_reply(seconds)
                        yield delta
                return
        self._on_reply(completion.usage.cached_seconds)
        yield Delta(text=completion.text)
        yield Delta(completion=self._from_cache(completion, waited))

    def _from_cache(self, completion: Completion, waited: float) -> Completion:
        usage = completion.usage
        # Time spent waiting for a concurrent call belongs to this call.
        saved = {"cached_calls": usage.calls, "cached_seconds": max(usage.cached_seconds - waited, 0.0)}
        if not self.capabilities.delegates:  # whose calls have prices of their own
            usage = priced(usage.model_copy(update={"cost": Decimal(0), "unpriced_calls": 0}), self.price)
        return completion.model_copy(update={"usage": usage.model_copy(update=saved)})

    def _key(self, request: Request) -> str:
        content = strip_nonces(request.model_dump_json(exclude={"timeout"}))
        return hashlib.sha256("\0".join((self.name, self._version, content)).encode()).hexdigest()

    def _lock(self, key: str) -> asyncio.Lock:
        """The lock of `key`: concurrent identical requests wait for one call instead of repeating it."""
        return self._locks.get().setdefault(key, asyncio.Lock())

    def _load(self, key: str) -> Completion | None:
        try:  # raising would fail the step and silently switch to another worker
            with self._open() as table:
                row = table.execute("SELECT completion FROM replies WHERE key = ?", (key,)).fetchone()
            return None if row is None else Completion.model_validate_json(row[0])
        except ValidationError:
            return None
        except sqlite3.Error as error:
            log.warning("the cache %r can't be read, so %s is called: %s", str(self._path), self.name, error)
            return None

    def _save(self, key: str, completion: Completion, seconds: float) -> None:
        if _ends_after_reasoning(completion):
            return
        usage = completion.usage.model_copy(update={"cached_seconds": seconds})
        completion = completion.model_copy(update={"usage": usage})
        try:
            with self._open() as table:
                table.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, completion.model_dump_json()))
        except sqlite3.Error as error:  # the reply is there and paid for
            log.warning("a reply of %s was not stored in the cache %r: %s", self.name, str(self._path), error)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as connection, connection:
            yield connection


def _ends_after_reasoning(completion: Completion) -> bool:
    """Whether the text is reasoning only, so that the call fails; one that was cut off would be cut off again."""
    if completion.finish_reason == "length" or completion.message.tool_calls:
        return False
    return bool(completion.text.strip()) and not split_reasoning(completion.text).answer.strip()


def stored_usage(path: str | Path) -> Usage:
    """Returns the usage that was really spent on all replies in a cache. A missing file contains none."""
    if not Path(path).is_file():
        return Usage()
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
        rows = connection.execute("SELECT json_extract(completion, '$.usage') FROM replies").fetchall()
    return total(Usage.model_validate_json(usage) for (usage,) in rows)
