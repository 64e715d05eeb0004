"""Measures how long servers with one store go on accepting a key after it was revoked.

Two applications in this process read the keys of one SQLite store; a third connection revokes them.

    python benchmarks/key_revocation.py --keys 10
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from contextlib import AsyncExitStack

import httpx

from rl_conductor import Conductor, ScriptedModel, WorkerPool
from rl_conductor_server.app import create_app
from rl_conductor_server.auth.created_keys import KeyTerms, create_key, revoke_key
from rl_conductor_server.auth.keys import REFRESH_SECONDS
from rl_conductor_server.settings import Settings, StoreEntry
from rl_conductor_server.store import Store


async def main(keys: int, seed: int) -> None:
    """Prints the times of so many keys."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        async with AsyncExitStack() as stack:
            store = await Store.open(url)
            stack.push_async_callback(store.aclose)
            servers = [await stack.enter_async_context(await _server(url, stack)) for _ in range(2)]
            seconds = []
            for number in range(keys):
                secret = await create_key(store, f"key-{number}", KeyTerms())
                await _until(servers, secret, accepted=True)
                await asyncio.sleep(draw.uniform(0, REFRESH_SECONDS))
                await revoke_key(store, f"key-{number}")
                started = time.monotonic()
                await _until(servers, secret, accepted=False)
                seconds.append(time.monotonic() - started)
    print(
        f"seconds until 2 servers reject a revoked key: median {statistics.median(seconds):.2f}, "
        f"at most {max(seconds):.2f}; {keys} keys, seed {seed}, read every {REFRESH_SECONDS:g} s"
    )


async def _server(url: str, stack: AsyncExitStack) -> httpx.AsyncClient:
    conductor = Conductor(ScriptedModel("unused"), WorkerPool({"a": ScriptedModel("unused")}))
    app = create_app(conductor, settings=Settings(store=StoreEntry(url=url)))
    await stack.enter_async_context(app.router.lifespan_context(app))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def _until(servers: list[httpx.AsyncClient], secret: str, *, accepted: bool) -> None:
    waiting = list(servers)
    while waiting:
        replies = [await server.get("/v1/models", headers={"x-api-key": secret}) for server in waiting]
        waiting = [s for s, reply in zip(waiting, replies, strict=True) if (reply.status_code == 200) != accepted]
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.keys, arguments.seed))
