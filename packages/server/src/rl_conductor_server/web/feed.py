"""Tells an open page when to look again: a server-sent event a change, without what has changed.

A page is drawn in one place only, so a browser that is told asks for the page anew. What is watched is the store, which
knows of the runs of all processes, and how much this process has heard of a run of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from rl_conductor_server.service import Service
from rl_conductor_server.store import Search

PAUSE = 0.5
"""Seconds between two looks."""
SILENCE = 15.0
"""Seconds after which a comment keeps the connection alive, and finds out whether anybody is still there."""
LISTED = 50


async def changes(service: Service, run: str | None) -> AsyncGenerator[str, None]:
    """Events of one run until it is over, or of the newest runs, until the server stops."""
    yield "retry: 2000\n\n"
    seen, silent = await _state(service, run), 0.0
    while not service.stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(service.stopping.wait(), PAUSE)
        now = await _state(service, run)
        silent += PAUSE
        if now != seen:
            yield "event: change\ndata:\n\n"
            seen, silent = now, 0.0
        elif silent >= SILENCE:
            yield ": nothing new\n\n"
            silent = 0.0
        if run is not None and not _goes_on(now):
            yield "event: over\ndata:\n\n"
            return


async def _state(service: Service, run: str | None) -> object:
    """Something that differs whenever a page would."""
    if run is None:
        rows = await service.store.runs(Search(), most=LISTED)
        return [(row.id, row.status, row.usage.calls) for row in rows]
    row = await service.store.run(run)
    live = service.runs.live(run)
    return row and row.status, row and row.usage.calls, live and len(live.so_far)


def _goes_on(state: object) -> bool:
    return isinstance(state, tuple) and state[0] == "running"
