"""Queries whose caller is cancelled leave no connection behind; nobody waits for a database that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal

import httpx
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from core.runs import SOON
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Price
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import Store, reader, write_behind
from rl_conductor_server.store.database import WRITE_LOCK
from server.conftest import Serve


async def cancel_insistently(store: Store, turns: int) -> bool:
    """Reads for so many turns of the event loop, then cancels in each turn, as AnyIO does when a client leaves."""
    reading = asyncio.create_task(store.get_run("run-1"))
    for _ in range(turns):
        await asyncio.sleep(0)
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    return reading.cancelled()


async def test_a_cancelled_query_closes_its_connection(url: str) -> None:
    store = await Store.open(url)
    before = asyncio.all_tasks()
    cancelled = [await cancel_insistently(store, turns) for turns in range(0, 90, 3)]
    cancelled += await asyncio.gather(*(cancel_insistently(store, turns) for turns in range(12)))
    await store.aclose()
    assert sum(cancelled) >= 8  # the others had ended before
    assert asyncio.all_tasks() == before


@asynccontextmanager
async def hung(postgres: str) -> AsyncGenerator[None, None]:
    """Keeps everybody from writing, and from reading runs, for the duration of the block."""
    async with await psycopg.AsyncConnection.connect(postgres.replace("+psycopg", "")) as connection:
        await connection.execute(WRITE_LOCK["postgresql"])
        await connection.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        yield
        await connection.rollback()


async def test_a_request_does_not_wait_for_a_database_that_has_stopped_to_answer(
    serve: Serve, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", 0.5)
    monkeypatch.setattr(reader, "CHECK_SECONDS", 0.1)
    price = Price(input=Decimal(1), output=Decimal(1))
    keys = {name: {"sha256": hash_key(f"key-of-{name}"), "usd": 1} for name in ("red", "blue")}
    worker = ScriptedModel(["from a"] * 9, price=price)
    at = await serve({"a": worker}, keys=keys, store={"url": postgres, "lease_seconds": 1})
    body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say it."}]}

    async def send(key: str) -> httpx.Response:
        return await at.http.post("/v1/chat/completions", json=body, headers={"x-api-key": f"key-of-{key}"})

    async with hung(postgres):
        replies = await asyncio.gather(*(send(key) for key in ("red", "red", "red", "blue")))
        lookup = await at.http.get("/v1/runs/run-0123456789abcdef", headers={"x-api-key": "key-of-red"})
    assert [reply.json()["error"]["code"] for reply in (*replies, lookup)] == ["store_away"] * 5
    assert worker.requests == []
    async with asyncio.timeout(SOON):
        while (await send("red")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_long_query_of_a_database_that_answers_is_not_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHECK_SECONDS", 0.01)
    store = await Store.open(url)

    async def read_slowly(connection: AsyncConnection) -> int:
        await asyncio.sleep(0.1)
        return int((await connection.execute(text("SELECT 1"))).scalar_one())

    assert await store._reader.run(read_slowly) == 1
    await store.aclose()
