"""Chat completion requests, and an event that a scripted model waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from core.runs import SOON
from rl_conductor.types import Request
from server.conftest import At

BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}


async def post(at: At, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return await at.http.post("/v1/chat/completions", json=BODY | more, headers=headers)


def gate() -> tuple[asyncio.Event, Any]:
    """An event, and a wait for it."""
    opened = asyncio.Event()

    async def wait(_: Request) -> None:
        await asyncio.wait_for(opened.wait(), SOON)

    return opened, wait
