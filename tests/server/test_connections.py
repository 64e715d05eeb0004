"""The limits of connections and of requests in progress, over real sockets."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from anthropic import InternalServerError

from core.runs import SOON, Gated, forever
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.service import MAX_FORMS
from server.chat_requests import BODY, post
from server.conftest import Serve, until
from server.pages import ADMIN, GUARDED
from server.raw_connections import connection

KEYS: Any = {name: {"sha256": hash_key(f"key-of-{name}")} for name in ("red", "blue")}
RED, BLUE = ({"authorization": f"Bearer key-of-{name}"} for name in KEYS)
PROBE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n", PROBE])
async def test_beyond_the_limit_a_new_connection_takes_the_place_of_the_one_that_waits_longest_for_a_request(
    serve: Serve, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    at = await serve(intake={"connections": 8})
    async with AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connection(at)) for _ in range(8)]
        await until(lambda: len(at.server.server_state.connections) == 8)
        for reader, writer in idle:
            writer.write(sent)
            if sent == PROBE:
                assert b"200" in await reader.readline()
        assert (await post(at)).status_code == 200
        first, *others = idle
        while await asyncio.wait_for(first[0].read(1_000), SOON):  # the rest of its response
            pass
        assert not any(reader.at_eof() for reader, _ in others)
    assert caplog.text.count("8 connections are open; idle ones are closed") == 1


async def test_a_connection_with_a_request_in_progress_is_not_closed_for_a_new_one(serve: Serve) -> None:
    a = Gated("late", forever)
    at = await serve({"a": a}, intake={"connections": 8})
    asking = asyncio.create_task(post(at))
    await asyncio.wait_for(a.asked.wait(), SOON)
    async with AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connection(at)) for _ in range(12)]
        for reader, _ in idle[:5]:
            assert await asyncio.wait_for(reader.read(), SOON) == b""
        assert len(at.server.server_state.connections) == 8
        assert not asking.done()
    asking.cancel()


async def test_probes_are_answered_while_requests_take_their_part_of_the_connections(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rl_conductor_server.access")
    a = Gated("late", forever)
    at = await serve({"a": a}, intake={"connections": 8})
    asking = [asyncio.create_task(post(at)) for _ in range(6)]
    await until(lambda: a.held == 6)
    refused = await post(at)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")
    with pytest.raises(InternalServerError) as raised:
        await at.anthropic().messages.create(model="conductor-mini", max_tokens=9, messages=BODY["messages"])
    assert (raised.value.status_code, raised.value.type) == (503, "overloaded_error")
    async with httpx.AsyncClient(base_url=at.url) as probe:
        assert [(await probe.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
    metrics = (await at.http.get("/metrics")).text
    for path in ("chat/completions", "messages"):
        assert f'conductor_requests_total{{path="/v1/{path}",status="503"}} 1.0' in metrics
    assert next(line for line in caplog.records if getattr(line, "status", None) == 503).__dict__["cause"] == "busy"
    assert "6 requests are in progress; further ones are rejected" in caplog.text
    for task in asking:
        task.cancel()
    await until(lambda: at.service.runs.waiting == 0 and not list(at.service.runs.active_ids))
    assert (await at.http.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("held", ["repeated", "unsent"])
async def test_requests_of_one_key_leave_connections_for_those_of_another(serve: Serve, held: str) -> None:
    a = Gated("late", forever)
    at = await serve({"a": a, "b": "at once"}, keys=KEYS, intake={"connections": 12})
    async with AsyncExitStack() as stack:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key-of-red\r\n"
        head += "idempotency-key: one\r\ncontent-type: application/json\r\n"
        text = json.dumps(BODY)
        sent = f"{head}content-length: {len(text)}\r\n\r\n{text if held == 'repeated' else '{'}"
        connections = [await stack.enter_async_context(connection(at)) for _ in range(9)]
        for _, writer in connections:
            writer.write(sent.encode())
        replies = [asyncio.create_task(reader.readuntil(b"}}")) for reader, _ in connections]
        await until(lambda: sum(reply.done() for reply in replies) == 3)
        for refused in (reply.result() for reply in replies if reply.done()):
            assert b" 429 " in refused
            assert b"retry-after: 5" in refused
            assert b"6 requests of this key are in progress" in refused
        elsewhere = {"policy": {"deny": ["a"]}}
        assert (await post(at, BLUE, conductor=elsewhere)).status_code == 200
        for reply in replies:
            reply.cancel()
    async with asyncio.timeout(SOON):  # a request is in progress until its handler has noticed that the client left
        while (answer := await post(at, RED, conductor=elsewhere)).status_code == 429:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert answer.status_code == 200


async def test_two_keys_together_leave_connections_for_those_of_a_third(serve: Serve) -> None:
    a = Gated("late", forever)
    green = {"green": {"sha256": hash_key("key-of-green")}}
    at = await serve({"a": a, "b": "at once"}, keys=KEYS | green, intake={"connections": 24})  # 18 of requests
    red = [asyncio.create_task(post(at, RED)) for _ in range(14)]
    await until(lambda: sum(task.done() for task in red) == 2)
    blue = [asyncio.create_task(post(at, BLUE)) for _ in range(6)]
    await until(lambda: sum(task.done() for task in blue) == 2)
    assert {task.result().status_code for task in (*red, *blue) if task.done()} == {429}
    third = {"authorization": "Bearer key-of-green"}
    assert (await post(at, third, conductor={"policy": {"deny": ["a"]}})).status_code == 200
    for task in (*red, *blue):
        task.cancel()


async def test_forms_that_are_sent_without_a_key_and_never_end_keep_nobody_from_signing_in(serve: Serve) -> None:
    at = await serve(**GUARDED, intake={"connections": 40})
    head = f"POST /sign-in HTTP/1.1\r\nhost: {at.url.removeprefix('http://')}\r\norigin: {at.url}\r\n"
    unsent = f"{head}content-type: application/x-www-form-urlencoded\r\ncontent-length: 500\r\n\r\nkey="
    async with AsyncExitStack() as stack:
        forms = [await stack.enter_async_context(connection(at)) for _ in range(30)]
        for _, writer in forms:
            writer.write(unsent.encode())
        replies = [asyncio.create_task(reader.readline()) for reader, _ in forms]
        await until(lambda: sum(reply.done() for reply in replies) == 30 - MAX_FORMS)
        assert all(b" 503 " in reply.result() for reply in replies if reply.done())
        assert (await at.http.post("/sign-in", data={"key": ADMIN}, headers={"origin": at.url})).status_code == 303
        assert (await post(at, {"authorization": "Bearer red-key"})).status_code == 200
        for reply in replies:
            reply.cancel()
