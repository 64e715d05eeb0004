"""A proxy that only forwards the bytes of Chat Completions: the least that any server in Python adds to a stream.

It runs on uvicorn with uvloop and httptools, and calls the vendor with HTTPX, as a hand-written proxy would.
"""

from __future__ import annotations

import argparse
from typing import Any

import httpx2
import uvicorn


class Passthrough:
    """An ASGI app that forwards each request to one address."""

    def __init__(self, upstream: str) -> None:
        """Initializes the app; `upstream` is the vendor's base URL."""
        self._upstream = upstream
        self._client = httpx2.AsyncClient(timeout=None)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Forwards one request, and the reply as it arrives."""
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {"content-type": "application/json", "authorization": "Bearer none"}
        url = f"{self._upstream}/chat/completions"
        async with self._client.stream("POST", url, content=body, headers=headers) as reply:
            names = ("content-type", "content-length")
            kept = [(name.encode(), reply.headers[name].encode()) for name in names if name in reply.headers]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
            async for piece in reply.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--upstream")
    args = parser.parse_args()
    uvicorn.run(
        Passthrough(args.upstream),
        host="127.0.0.1",
        port=args.port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="error",
    )


if __name__ == "__main__":
    main()
