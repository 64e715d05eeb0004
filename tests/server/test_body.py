from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from core.runs import SOON, Gated, Paced, forever
from rl_conductor.errors import ScriptError
from server.conftest import At, Serve, until

BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
QUICK = {"client_seconds": 0.4, "body_bytes": 4096, "header_bytes": 4096}


async def connect(at: At) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = at.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def say(at: At, text: str) -> bytes:
    """Everything that the server says to this, until it hangs up or `SOON` is over."""
    reader, writer = await connect(at)
    writer.write(text.encode())
    try:
        async with asyncio.timeout(SOON):
            return await reader.read()
    finally:
        writer.close()


async def test_a_body_that_is_too_large_is_refused(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    large = BODY | {"messages": [{"role": "user", "content": "x" * 5000}]}
    told = await at.http.post("/v1/chat/completions", json=large)
    assert (told.status_code, told.json()["error"]["code"]) == (413, "too_large")
    head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunked = head + "transfer-encoding: chunked\r\n\r\n" + f"{5000:x}\r\n{'x' * 5000}\r\n0\r\n\r\n"
    assert b"request_too_large" in await say(at, chunked + "")


async def test_a_body_that_comes_too_slowly_is_given_up(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    assert b"408" in await say(at, head + 'content-length: 100\r\nconnection: close\r\n\r\n{"model"')


@pytest.mark.parametrize("sent", ["", "POST /v1/chat/completions HTTP/1.1\r\nhost: local"])
async def test_a_client_that_never_ends_its_headers_is_hung_up_on(serve: Serve, sent: str) -> None:
    at = await serve(intake=QUICK)
    assert await say(at, sent) == b""


async def test_headers_that_are_too_large_are_refused(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    assert b"400" in await say(at, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + "x" * 100_000)


async def test_a_patient_client_may_ask_again_on_the_same_connection(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    for _ in range(3):
        assert (await at.http.get("/healthz")).status_code == 200
        await asyncio.sleep(0.3)


async def test_an_answer_that_takes_long_is_not_taken_for_a_slow_client(serve: Serve) -> None:
    opened = asyncio.Event()

    async def wait(_: object) -> None:
        await opened.wait()

    at = await serve({"a": Gated("late", wait)}, intake=QUICK)
    asking = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
    await asyncio.sleep(1.0)
    opened.set()
    assert (await asking).status_code == 200


async def test_a_reader_who_stops_reading_loses_the_stream_and_ends_the_run(serve: Serve) -> None:
    pieces = ["x" * 200_000] * 100  # more than sockets hold back for a reader

    async def never_end(said: str) -> None:
        await asyncio.sleep(3600 if len(said) == 20_000_000 else 0)

    a = Paced([pieces], never_end)
    at = await serve({"a": a}, intake={"client_seconds": 0.4})
    reader, writer = await connect(at)
    body = json.dumps(BODY | {"stream": True})
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    assert b"200" in await reader.readline()
    await until(lambda: len(a.requests) == 1 and not a.in_flight)
    await until(lambda: not at.server.server_state.connections)
    writer.close()


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_a_reader_who_never_reads_a_whole_answer_is_hung_up_on(serve: Serve, connection: str) -> None:
    at = await serve({"a": "x" * 20_000_000}, intake={"client_seconds": 0.4})
    reader, writer = await connect(at)
    body = json.dumps(BODY)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"connection: {connection}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    assert b"200" in await reader.readline()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: not at.server.server_state.connections)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(SOON):
        with suppress(ConnectionResetError):
            assert len(await reader.read()) < 20_000_000
    writer.close()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_web_page_can_not_ask_by_a_plain_form(serve: Serve, kind: str) -> None:
    at = await serve()
    told = await at.http.post("/v1/chat/completions", content=json.dumps(BODY), headers={"content-type": kind})
    assert told.status_code == 415


async def test_without_keys_no_other_name_leads_here(serve: Serve) -> None:
    at = await serve()
    assert (await at.http.get("/v1/models", headers={"host": "evil.example"})).status_code == 400


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"model": 1}', '{"model": "x", "messages": []}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_what_is_no_request_is_refused_and_breaks_nothing(serve: Serve, path: str, body: str) -> None:
    at = await serve()
    told = await at.http.post(path, content=body, headers={"content-type": "application/json"})
    assert told.status_code == 400
    assert told.json()["error"]["message"]


async def test_a_name_that_is_too_long_is_refused(serve: Serve) -> None:
    at = await serve()
    told = await at.http.post("/v1/chat/completions", json=BODY, headers={"idempotency-key": "x" * 256})
    assert told.status_code == 400


async def test_a_mistake_of_ours_is_told_without_its_details(serve: Serve) -> None:
    def broken(_: object) -> str:
        raise ScriptError("an inner secret")  # which nothing takes for a failure of the model

    at = await serve({"a": broken})
    told = await at.http.post("/v1/chat/completions", json=BODY)
    assert told.status_code == 500
    assert "secret" not in told.text
    streamed = await at.http.post("/v1/chat/completions", json=BODY | {"stream": True})
    assert "secret" not in streamed.text


async def test_who_hangs_up_while_waiting_for_a_place_gives_it_up(serve: Serve) -> None:
    a = Gated("never", forever)
    at = await serve({"a": a}, intake={"running": 1})
    first = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
    await a.asked.wait()
    second = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
    await until(lambda: at.service.runs.waiting == 1)
    second.cancel()
    await until(lambda: at.service.runs.waiting == 0)
    first.cancel()
    await until(lambda: not a.held)
