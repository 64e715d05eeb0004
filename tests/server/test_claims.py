from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import event

from core.runs import SOON, Gated
from server.chat_requests import gate, post
from server.conftest import Serve

NAMED = {"idempotency-key": "order-7"}


async def test_a_request_that_another_server_answers_waits_without_the_write_lock_and_less_and_less_often(
    serve: Serve, url: str
) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    store = {"url": url, "lease_seconds": 600}
    one, other = await serve({"a": a}, store=store), await serve({"a": "unused"}, store=store)
    first = asyncio.create_task(post(one, NAMED))
    await asyncio.wait_for(a.asked.wait(), SOON)
    transactions, reads, has_waited = list[Any](), list[float](), asyncio.Event()

    def record_read(*arguments: Any) -> None:
        if "FROM runs" in arguments[2]:
            reads.append(time.monotonic())
            if len(reads) == 5:
                has_waited.set()

    queue = other.service.store.write_queue
    event.listen(queue._engine, "begin", transactions.append)
    event.listen(other.service.store._reader._engine.sync_engine, "before_cursor_execute", record_read)
    second = asyncio.create_task(post(other, NAMED))
    await asyncio.wait_for(has_waited.wait(), SOON)
    assert len(transactions) == 1  # its only attempt to claim the run
    opened.set()
    replies = [await first, await second]
    assert [reply.json()["choices"][0]["message"]["content"] for reply in replies] == ["from a"] * 2
    assert replies[1].headers["idempotent-replayed"] == "true"
    assert reads[4] - reads[0] > 1.2  # the sum of the second to the fifth pause; the first is 0.1 s
    assert len(a.requests) == 1
