from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import event

from core.runs import SOON, Gated
from rl_conductor_server.runs.registry import CLAIM_SECONDS
from server.chat_requests import BODY, gate, post
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
    claims, reads, has_waited = list[str](), list[float](), asyncio.Event()

    def record_claim(*arguments: Any) -> None:
        if "INSERT INTO runs" in arguments[2]:
            claims.append(arguments[2])

    def record_read(*arguments: Any) -> None:
        if "WHERE runs.id =" in arguments[2]:  # not the reads of the upkeep at the start
            reads.append(time.monotonic())
            if len(reads) == 5:
                has_waited.set()

    queue = other.service.store.write_queue
    event.listen(queue._engine, "before_cursor_execute", record_claim)
    event.listen(other.service.store._reader._engine.sync_engine, "before_cursor_execute", record_read)
    second = asyncio.create_task(post(other, NAMED))
    await asyncio.wait_for(has_waited.wait(), SOON)
    assert len(claims) == 1
    opened.set()
    replies = [await first, await second]
    assert [reply.json()["choices"][0]["message"]["content"] for reply in replies] == ["from a"] * 2
    assert replies[1].headers["idempotent-replayed"] == "true"
    assert reads[4] - reads[0] > 1.2  # the sum of the second to the fifth pause; the first is 0.1 s
    assert len(a.requests) == 1


async def test_an_answer_that_is_stored_is_repeated_without_a_claim(serve: Serve, url: str) -> None:
    at = await serve(store={"url": url})
    statements = list[str]()

    def record(*arguments: Any) -> None:
        statements.append(arguments[2])

    assert (await post(at, NAMED)).status_code == 200
    event.listen(at.service.store.write_queue._engine, "before_cursor_execute", record)
    again, other = await post(at, NAMED), await post(at, NAMED, temperature=0.5)
    assert again.headers["idempotent-replayed"] == "true"
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")
    assert not [statement for statement in statements if "INSERT INTO runs" in statement]


async def test_of_two_requests_at_once_to_one_server_the_second_follows_the_first_ones_run_at_once(
    serve: Serve, url: str
) -> None:
    opened, wait = gate()
    at = await serve({"a": Gated("from a", wait)}, store={"url": url})

    async def first_event() -> str:
        stream = at.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}, headers=NAMED)
        async with stream as reply:
            return await anext(line async for line in reply.aiter_lines() if line)

    # Less than the time after which a run of another server would be claimed.
    async with asyncio.timeout(CLAIM_SECONDS - 1):
        events = await asyncio.gather(first_event(), first_event())
    assert events[0] == events[1]
    opened.set()
