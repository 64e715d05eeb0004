"""Notifies open pages of changes by server-sent events.

An event says only that something changed; the page then requests itself again, so that there is one place that renders
it. Changes are detected by polling the store, which knows the runs of all processes, and the events of runs in this
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from rl_conductor_server.service import Service
from rl_conductor_server.store import Search

POLL_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 15.0
"""Silence after which a comment is sent, which also detects closed connections."""
LISTED_RUNS = 50


async def change_events(service: Service, run: str | None, *, key: str | None) -> AsyncGenerator[str, None]:
    """Yields events of one run until it is over, or of the newest runs until the server stops; with `key`, of its."""
    previous, silence = await _snapshot(service, run, key), 0.0
    yield "retry: 2000\n\n"
    while not service.stopping.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await service.stopping.wait()
        current = await _snapshot(service, run, key)
        silence += POLL_SECONDS
        if current != previous:
            yield "event: change\ndata:\n\n"
            previous, silence = current, 0.0
        elif silence >= KEEP_ALIVE_SECONDS:
            yield ": keep-alive\n\n"
            silence = 0.0
        if run is not None and not _is_running(current):
            yield "event: over\ndata:\n\n"
            return


async def _snapshot(service: Service, run: str | None, key: str | None) -> object:
    """Returns a value that differs whenever the page would."""
    if run is None:
        rows = await service.store.list_runs(Search(key=key), limit=LISTED_RUNS)
        return [(row.id, row.status, row.usage.calls) for row in rows]
    row = await service.store.get_run(run, key=key)
    handle = service.runs.get(run) if row else None
    return row and row.status, row and row.usage.calls, handle and len(handle.events_so_far)


def _is_running(snapshot: object) -> bool:
    return isinstance(snapshot, tuple) and snapshot[0] == "running"
