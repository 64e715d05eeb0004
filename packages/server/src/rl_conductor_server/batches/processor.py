"""`BatchProcessor`: processes items of batches as long as the server, or a batch worker, runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.exc import SQLAlchemyError

from rl_conductor_server.api.adapter import ApiAdapter
from rl_conductor_server.api.adapters import ADAPTERS
from rl_conductor_server.api.openai_responses.state.errors import LOCKED
from rl_conductor_server.batches.item_answer import answer_item
from rl_conductor_server.errors import to_api_error
from rl_conductor_server.logs import log_failures
from rl_conductor_server.service import Service
from rl_conductor_server.store import ClaimedItem, ItemResult, StoreUnavailableError
from rl_conductor_server.store.batches.lines import error_line, result_line
from rl_conductor_server.store.batches.models import Place

log = logging.getLogger("rl_conductor_server.batches")

POLL_SECONDS = 1.0
"""Interval at which an idle process looks for items of other processes."""
MAX_RETRIES = 5
"""Maximum number of retries of an item that was rejected because of overload or a rate limit."""
MAX_RETRY_DELAY = 60.0
WAITING = ("busy", LOCKED)
"""Codes of errors because of other requests in progress; then an item waits in the queue, however long."""


class _OthersInProgressError(Exception):
    """An item has to wait for other requests."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is when it may be tried again."""
        super().__init__()
        self.seconds = seconds


class BatchProcessor:
    """Processes up to `concurrency` items at once. Items of a process that dies are taken over by another."""

    def __init__(self, service: Service, *, concurrency: int | None = None) -> None:
        """Creates a processor; `concurrency` is by default that of the settings, and with 0 it processes nothing."""
        self._service = service
        self._concurrency = service.settings.batches.concurrency if concurrency is None else concurrency
        self._active: dict[Place, asyncio.Task[None]] = {}
        self._cancelled: set[Place] = set()
        self._has_room = service.store.batches.work_added

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Processes items for the duration of the block. Items that don't end in time go back into the queue."""
        loops = [asyncio.create_task(self._claim_items()), asyncio.create_task(self._keep_leases())]
        try:
            yield
        finally:
            self._service.stopping.set()
            loops[0].cancel()
            await asyncio.gather(loops[0], return_exceptions=True)
            await self._drain(self._service.stopping.remaining_seconds)
            loops[1].cancel()
            await asyncio.gather(loops[1], return_exceptions=True)

    async def _drain(self, seconds: float) -> None:
        active = list(self._active.values())
        if active:
            await asyncio.wait(active, timeout=seconds)
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)

    async def _claim_items(self) -> None:
        """Claims items while there is room for them."""
        items = self._service.store.items
        while True:
            self._has_room.clear()
            room = self._concurrency - len(self._active)
            claimed = 0
            with log_failures("claiming items of batches"):
                if room > 0 and await items.can_claim():
                    waiting = [key.name for key in self._service.keys if key.is_rate_limited]
                    for item in await items.claim(room, active=list(self._active), except_keys=waiting):
                        claimed += 1
                        self._begin(item)
            if claimed < room or room <= 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._has_room.wait()

    def _begin(self, item: ClaimedItem) -> None:
        task = asyncio.create_task(self._process(item), name=item.idempotency_key)
        self._active[item.place] = task

        def end(_: asyncio.Task[None]) -> None:
            del self._active[item.place]
            self._cancelled.discard(item.place)
            self._has_room.set()

        task.add_done_callback(end)

    async def _keep_leases(self) -> None:
        """Renews leases, cancels items of cancelled batches, and ends overdue batches."""
        store, interval = self._service.store, self._service.settings.store.lease_seconds / 5
        while True:
            await asyncio.sleep(interval)
            with log_failures("the upkeep of batches"):
                if self._active or await store.items.has_batches():
                    for place in await store.items.renew(list(self._active)):
                        if place in self._active and place not in self._cancelled:
                            self._cancelled.add(place)
                            self._active[place].cancel()
                    await store.items.tend(store.batches)
                self._service.metrics.set_queued_items(await store.items.count_queued())

    async def _process(self, item: ClaimedItem) -> None:
        if any(key.name == item.key and key.is_rate_limited for key in self._service.keys):
            self._service.store.items.release(item)  # meanwhile there is room for items of other keys
            return
        try:
            result = await self._answer(item)
        except _OthersInProgressError as error:
            self._service.store.items.release(item, wait=error.seconds)  # meanwhile there is room for others
            return
        except asyncio.CancelledError:
            if item.place not in self._cancelled:  # this process stops
                self._service.store.items.release(item)
                raise
            result = ItemResult(status="cancelled")
        await self._store(item, result)

    async def _store(self, item: ClaimedItem, result: ItemResult) -> None:
        """Stores a result, as soon as the store is there."""
        limit = self._service.settings.batches.key_bytes
        while True:
            try:
                try:
                    stored = await self._service.store.items.finish(item, result, max_total_bytes=limit)
                except (SQLAlchemyError, StoreUnavailableError):  # if the lease expires, the stored run is found again
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    self._service.metrics.count_batch_item(stored.status)
                    return
            except asyncio.CancelledError:
                if self._service.stopping.is_set():
                    self._service.store.items.release(item)
                    raise
                # Of a batch that is being cancelled; it ends once this result is stored.

    async def _answer(self, item: ClaimedItem) -> ItemResult:
        """Answers one request. Errors are results, too, unless other requests cause them."""
        (adapter, _), retries = ADAPTERS[item.endpoint], 0
        while True:
            try:
                return await self._run(item, adapter)
            except Exception as error:
                failure = to_api_error(error)
                if failure.status == 500:
                    log.exception("a request of %s failed", item.batch)
            if failure.code == "stopping":
                raise asyncio.CancelledError
            if failure.code in WAITING:
                raise _OthersInProgressError(failure.retry_after or POLL_SECONDS)
            retries += 1
            if failure.retry_after is None or retries > MAX_RETRIES:
                body = adapter.error_body(failure)
                text = result_line(*item.place, item.custom_id, status=failure.status, body=body)
                return ItemResult(status="failed", text=text)
            await asyncio.sleep(min(failure.retry_after, MAX_RETRY_DELAY))

    async def _run(self, item: ClaimedItem, adapter: ApiAdapter) -> ItemResult:
        """Runs one request under its key. Raises an exception if there is no answer."""
        completed = await answer_item(self._service, item, adapter)
        text = result_line(*item.place, item.custom_id, status=200, request_id=completed.run, body=completed.body)
        size, limit = len(text.encode(errors="replace")), self._service.settings.batches.reply_bytes
        if size > limit:
            message = f"the reply has {size:,} bytes; at most {limit:,} are allowed"
            text = error_line(*item.place, item.custom_id, code="reply_too_large", message=message)
            return ItemResult(status="failed", text=text)
        return ItemResult(status="done", text=text)
