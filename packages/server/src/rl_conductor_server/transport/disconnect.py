"""Cancels work when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def run_until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of `work`, or cancels it when the client disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
    """
    disconnect = asyncio.create_task(_wait_for_disconnect(receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({disconnect, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for pending in (disconnect, task):
            pending.cancel()
        await asyncio.gather(disconnect, task, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
