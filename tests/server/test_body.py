from __future__ import annotations

import asyncio
import gc
import gzip
import json
import re
import time
from contextlib import suppress
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from core.runs import SOON, Gated, Paced, forever
from rl_conductor.errors import ScriptError
from rl_conductor_server.transport.http_protocol import LimitingProtocol
from server.conftest import At, Serve, until
from server.raw_connections import MORE_THAN_SOCKETS_HOLD, connection

BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
QUICK = {"client_seconds": 0.4, "body_bytes": 4096, "header_bytes": 4096}


async def say(at: At, text: str) -> bytes:
    """Everything that the server says to this, until it hangs up or `SOON` is over."""
    async with connection(at) as (reader, writer), asyncio.timeout(SOON):
        writer.write(text.encode())
        return await reader.read()


def raw_request(body: dict[str, Any], *headers: str) -> bytes:
    """Returns a request for a chat completion as it is sent."""
    text = json.dumps(body)
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(text)}", "", text]).encode()


async def test_a_body_that_is_too_large_is_rejected(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    large = BODY | {"messages": [{"role": "user", "content": "x" * 5000}]}
    told = await at.http.post("/v1/chat/completions", json=large)
    assert (told.status_code, told.json()["error"]["code"]) == (413, "too_large")
    head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    chunked = head + "transfer-encoding: chunked\r\n\r\n" + f"{5000:x}\r\n{'x' * 5000}\r\n0\r\n\r\n"
    assert b"request_too_large" in await say(at, chunked + "")


def with_schema(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def nested(levels: int, leaf: dict[str, Any]) -> dict[str, Any]:
    """The properties of a schema with this many objects in one another, each beside a leaf."""
    properties = {"leaf": leaf}
    for _ in range(levels - 1):
        properties = {"leaf": leaf, "next": {"type": "object", "properties": properties}}
    return properties


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messages": [{"role": "user", "content": "x"}] * 80_000}, "messages has 80,000 elements; at most 2,000"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 9_000}]}, "9,000 content parts"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 300}, "tools has 300 elements; at most 256"),
        (with_schema({f"p{n}": {"enum": ["a", "b"]} for n in range(40_000)}), "more than 50,000 JSON values"),
        (with_schema(nested(60, {"enum": ["a"] * 2_000})), "more than 50,000 JSON values"),
        (with_schema(nested(40, {"type": "string"})), "response_format is nested more than 64 levels deep"),
    ],
    ids=["messages", "parts", "tools", "wide schema", "deep schema", "deeper than vendors allow"],
)
async def test_a_request_with_too_many_elements_is_rejected_without_delaying_others(
    serve: Serve, changes: dict[str, Any], message: str
) -> None:
    at = await serve()
    asked = [{"role": "user", "content": "x"}]
    sent = asyncio.create_task(at.http.post("/v1/chat/completions", json={"messages": asked, **changes, "model": "m"}))
    slowest = 0.0
    while not sent.done():
        started = time.thread_time()  # what other processes take says nothing of this one
        await at.http.get("/healthz")
        slowest = max(slowest, time.thread_time() - started)
    reply = await sent
    assert (reply.status_code, message in reply.json()["error"]["message"]) == (400, True)
    assert slowest < 1.5


UNKNOWN: Any = {
    "chat/completions": lambda fields: {"messages": BODY["messages"], **fields},
    "messages": lambda fields: {"max_tokens": 5, "messages": BODY["messages"], **fields},
    "responses/input_tokens": lambda fields: {"input": [{"role": "user", "content": "x", **fields}]},
}
"""A body with these fields, which the API does not have, by path."""


@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("value", [0, None])
@pytest.mark.parametrize("strict", [True, False])
async def test_thousands_of_unknown_fields_are_rejected_instead_of_ignored_one_by_one(
    serve: Serve, path: str, value: int | None, strict: bool
) -> None:
    at = await serve(intake={"strict": strict})
    fields = UNKNOWN[path](dict.fromkeys(map(str, range(26_000)), value))
    reply = await at.http.post(f"/v1/{path}", json={"model": "conductor-mini", **fields})
    assert (reply.status_code, "more than 2,000 fields" in reply.text) == (400, True)


async def test_requests_in_progress_are_limited_in_total_size(serve: Serve) -> None:
    a = Gated("late", forever)
    at = await serve({"a": a}, intake={"total_body_bytes": 10_000})
    body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "x" * 6_000}]}
    first = asyncio.create_task(at.http.post("/v1/chat/completions", json=body))
    await asyncio.wait_for(a.asked.wait(), 10)
    second = await at.http.post("/v1/chat/completions", json=body)
    assert (second.status_code, second.headers["x-should-retry"], second.headers["retry-after"]) == (503, "true", "2")
    first.cancel()
    await until(lambda: not at.service.bodies.reserved)


async def test_each_choice_takes_the_size_of_its_request(serve: Serve) -> None:
    a = Gated("late", forever)
    at = await serve({"a": a}, intake={"total_body_bytes": 10_000})
    body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "x" * 1_500}]}
    never = await at.http.post("/v1/chat/completions", json=body | {"n": 8})
    assert (never.status_code, never.json()["error"]["code"]) == (413, "too_large")
    assert not a.asked.is_set()
    first = asyncio.create_task(at.http.post("/v1/chat/completions", json=body | {"n": 4}))
    await asyncio.wait_for(a.asked.wait(), 10)
    second = await at.http.post("/v1/chat/completions", json=body | {"n": 4})
    assert (second.status_code, second.json()["error"]["code"]) == (503, "busy")
    first.cancel()
    await until(lambda: not at.service.bodies.reserved)


async def test_a_body_that_is_sent_too_slowly_is_rejected(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    assert b"408" in await say(at, head + 'content-length: 100\r\nconnection: close\r\n\r\n{"model"')


@pytest.mark.parametrize("sent", ["", "POST /v1/chat/completions HTTP/1.1\r\nhost: local"])
async def test_a_client_that_never_completes_its_headers_is_disconnected(serve: Serve, sent: str) -> None:
    at = await serve(intake=QUICK)
    assert await say(at, sent) == b""


async def test_headers_that_are_too_large_are_rejected(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    assert b"400" in await say(at, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + "x" * 100_000)


@pytest.mark.parametrize(
    "start",
    [
        f"GET /healthz HTTP/1.1\r\nx: {'x' * 4_090}\r\n",
        "GET /healthz HTTP/1.1\r\n" + "x: \r\n" * 1_000,
        f"GET /{'x' * 4_100} HTTP/1.1\r\n",
    ],
    ids=["one", "many", "path"],
)
async def test_headers_that_are_too_large_are_rejected_when_they_arrive_at_once_with_their_end(
    serve: Serve, start: str
) -> None:
    at = await serve(intake=QUICK)
    reply = await say(at, f"{start}host: localhost\r\ncontent-length: 2\r\n\r\n" + "{}")
    assert reply.count(b"HTTP/1.1 ") == reply.count(b"The headers are larger than 4,096 bytes.") == 1


async def test_headers_as_large_as_allowed_are_accepted_when_they_arrive_at_once(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    head = f"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: {'x' * 4_000}\r\n\r\n"
    assert b"HTTP/1.1 200" in await say(at, head)


async def test_headers_that_grow_too_large_after_a_complete_request_are_rejected(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    async with connection(at) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 3_000 + b"\r\n\r\n")
            assert b"200" in await reader.readline()
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len('{"status":"ok"}'))
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")
        reply = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            for _ in range(5):
                writer.write(b"x: " + b"x" * 1_000 + b"\r\n")
                await writer.drain()
        assert b"The headers are larger than 4,096 bytes." in await asyncio.wait_for(reply, SOON)


@pytest.mark.parametrize(
    "length", ["content-length: 2\r\n\r\n{}", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
async def test_a_body_after_the_header_upgrade_is_rejected_instead_of_lost(serve: Serve, length: str) -> None:
    at = await serve(intake=QUICK)
    upgrade = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{upgrade}"
    reply = await say(at, head + length)
    assert reply.startswith(b"HTTP/1.1 400")
    assert reply.endswith(
        b"\r\n\r\nSend requests with a body without the header 'upgrade': this server speaks HTTP/1.1."
    )


async def test_a_request_for_two_hosts_is_rejected(serve: Serve) -> None:
    reply = await say(await serve(intake=QUICK), "GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: other\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 400")
    assert reply.endswith(b"\r\n\r\nSend one header 'host'.")


async def test_a_request_without_a_body_is_answered_whatever_it_would_upgrade_to(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    upgrade = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    assert (await at.http.get("/healthz", headers=upgrade)).status_code == 200


async def test_trailers_neither_become_headers_nor_grow_without_end(serve: Serve) -> None:
    at = await serve(intake=QUICK | {"client_seconds": 5.0})
    body = json.dumps(BODY)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunked = head + f"transfer-encoding: chunked\r\nconnection: close\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n"
    reply = await say(at, chunked + "idempotency-key: late\r\n\r\n")
    assert b"HTTP/1.1 200" in reply
    assert [row.idempotency_key for row in await at.service.store.list_runs()] == [None]
    async with connection(at) as (reader, writer):
        writer.write((chunked + "x: ").encode())
        reading = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            for _ in range(10):
                writer.write(b"x" * 1_000)
                await writer.drain()
        assert b"The headers are larger" in await asyncio.wait_for(reading, SOON)


async def test_a_request_that_was_answered_early_gets_no_second_response(serve: Serve) -> None:
    at = await serve(intake=QUICK | {"client_seconds": 5.0})
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    async with connection(at) as (reader, writer):
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n5;".encode())
        reply = await asyncio.wait_for(reader.readuntil(b"}"), SOON)
        assert b"HTTP/1.1 415" in reply
        with suppress(ConnectionError):
            for _ in range(10):
                writer.write(b"x" * 1_000)
                await writer.drain()
            assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), SOON)


BAD_CHUNK = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n"


@pytest.mark.parametrize(
    "sent", [b"no request\r\n\r\n" * 3, b"GET / HTTP/1.1\r\nx: " + b"x" * 5_000, BAD_CHUNK, BAD_CHUNK + b"x"]
)
async def test_what_is_no_request_does_not_break_the_response_before_it(serve: Serve, sent: bytes) -> None:
    sending = asyncio.Event()

    async def wait(text: str) -> None:
        if text == "one ":
            await asyncio.wait_for(sending.wait(), SOON)

    at = await serve({"a": Paced("one two", wait)}, intake=QUICK | {"client_seconds": 5.0})
    async with connection(at) as (reader, writer), asyncio.timeout(SOON):
        writer.write(raw_request(BODY | {"stream": True}))
        reply = await reader.readuntil(b"one ")
        writer.write(sent)
        (protocol,) = at.server.server_state.connections
        assert isinstance(protocol, LimitingProtocol)
        await until(lambda: not protocol.cycle.keep_alive)
        sending.set()
        reply += await reader.read()
    assert reply.count(b"HTTP/1.1") == 1
    assert b"two" in reply
    assert reply.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_requests_before_a_body_that_is_not_valid_get_their_responses(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    get = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for before in (get, get * 3):
        reply = await say(at, (before + BAD_CHUNK).decode())
        assert reply.count(b"HTTP/1.1 200") == before.count(b"GET")


async def test_a_body_in_chunks_of_one_byte_is_accepted(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    body = json.dumps(BODY)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunks = "".join(f"1\r\n{character}\r\n" for character in body)
    reply = await say(at, f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n{chunks}0\r\n\r\n")
    assert b"HTTP/1.1 200" in reply


async def test_a_large_body_does_not_count_as_headers(serve: Serve) -> None:
    at = await serve(intake=QUICK | {"body_bytes": 100_000})
    body = json.dumps({**BODY, "messages": [{"role": "user", "content": "x" * 50_000}]})
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sent = f"{head}content-length: {len(body)}\r\n\r\n{body}"
    async with connection(at) as (reader, writer):
        writer.write((sent + "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n").encode())
        assert b"200" in await reader.readline()
        writer.write(b"\r\n")
        assert b"HTTP/1.1 200" in await asyncio.wait_for(reader.read(), SOON)


async def test_a_connection_can_be_reused_after_a_pause(serve: Serve) -> None:
    at = await serve(intake=QUICK)
    for _ in range(3):
        assert (await at.http.get("/healthz")).status_code == 200
        await asyncio.sleep(0.3)


async def test_a_slow_run_does_not_disconnect_its_client(serve: Serve) -> None:
    opened = asyncio.Event()

    async def wait(_: object) -> None:
        await opened.wait()

    at = await serve({"a": Gated("late", wait)}, intake=QUICK)
    asking = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
    await asyncio.sleep(1.0)
    opened.set()
    assert (await asking).status_code == 200


async def test_a_client_that_stops_reading_is_disconnected_and_its_run_cancelled(serve: Serve) -> None:
    pieces = ["x" * (MORE_THAN_SOCKETS_HOLD // 30)] * 30

    async def never_end(said: str) -> None:
        await asyncio.sleep(3600 if len(said) == MORE_THAN_SOCKETS_HOLD else 0)

    a = Paced([pieces], never_end)
    at = await serve({"a": a}, intake={"client_seconds": 0.4})
    async with connection(at) as (reader, writer):
        writer.write(raw_request(BODY | {"stream": True}))
        assert b"200" in await reader.readline()
        await until(lambda: len(a.requests) == 1 and not a.in_flight)
        await until(lambda: not at.server.server_state.connections)


async def test_an_idle_connection_stays_open_longer_than_slow_headers_may_take(serve: Serve) -> None:
    at = await serve(intake={"client_seconds": 0.4})
    async with connection(at) as (reader, writer), asyncio.timeout(SOON):
        for _ in range(2):
            writer.write(raw_request(BODY, "connection: keep-alive"))
            assert b"200" in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            await asyncio.sleep(1.0)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: ")  # and no more
        assert await reader.read() == b""


async def test_a_busy_connection_keeps_no_finished_requests_alive(serve: Serve) -> None:
    at = await serve()
    async with connection(at) as (reader, writer), asyncio.timeout(SOON):
        for _ in range(30):
            writer.write(raw_request(BODY, "connection: keep-alive"))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
        gc.collect()
        assert sum(isinstance(thing, RequestResponseCycle) for thing in gc.get_objects()) < 10


@pytest.mark.parametrize(("keep", "count"), [("keep-alive", 1), ("keep-alive", 2), ("close", 1)])
async def test_a_client_that_never_reads_a_response_is_disconnected(serve: Serve, keep: str, count: int) -> None:
    at = await serve({"a": "x" * MORE_THAN_SOCKETS_HOLD}, intake={"client_seconds": 0.4})
    async with connection(at) as (reader, writer):
        writer.write(raw_request(BODY, f"connection: {keep}") * count)
        assert b"200" in await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: not at.server.server_state.connections)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(SOON):
            with suppress(ConnectionResetError):
                assert len(await reader.read()) < MORE_THAN_SOCKETS_HOLD


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_form_on_another_website_can_not_send_a_request(serve: Serve, kind: str) -> None:
    at = await serve()
    told = await at.http.post("/v1/chat/completions", content=json.dumps(BODY), headers={"content-type": kind})
    assert told.status_code == 415


async def test_without_keys_only_loopback_host_names_are_accepted(serve: Serve) -> None:
    at = await serve()
    assert (await at.http.get("/v1/models", headers={"host": "evil.example"})).status_code == 400


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"model": 1}', '{"model": "x", "messages": []}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_malformed_requests_are_rejected_and_break_nothing(serve: Serve, path: str, body: str) -> None:
    at = await serve()
    told = await at.http.post(path, content=body, headers={"content-type": "application/json"})
    assert told.status_code == 400
    assert told.json()["error"]["message"]


async def test_a_compressed_body_is_rejected_by_the_name_of_its_header(serve: Serve) -> None:
    at = await serve()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(json.dumps(BODY).encode())
    reply = await at.http.post("/v1/chat/completions", content=body, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "compressed_body")
    assert "without the header content-encoding" in reply.json()["error"]["message"]


async def test_an_idempotency_key_that_is_too_long_is_rejected(serve: Serve) -> None:
    at = await serve()
    told = await at.http.post("/v1/chat/completions", json=BODY, headers={"idempotency-key": "x" * 256})
    assert told.status_code == 400


async def test_an_internal_error_reveals_no_details(serve: Serve) -> None:
    def broken(_: object) -> str:
        raise ScriptError("an inner secret")  # which nothing takes for a failure of the model

    at = await serve({"a": broken})
    told = await at.http.post("/v1/chat/completions", json=BODY)
    assert told.status_code == 500
    assert "secret" not in told.text
    streamed = await at.http.post("/v1/chat/completions", json=BODY | {"stream": True})
    assert "secret" not in streamed.text


async def test_a_disconnect_while_queued_frees_the_place_in_the_queue(serve: Serve) -> None:
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


async def test_a_schema_within_the_limits_of_vendors_is_accepted(serve: Serve) -> None:
    at = await serve({"a": "{}"})
    leaf = {"type": "string", "description": "x" * 100}
    body = {"messages": [{"role": "user", "content": "x"}], **with_schema(nested(10, leaf))}
    assert (await at.http.post("/v1/chat/completions", json={**body, "model": "conductor-mini"})).status_code == 200
    wide = with_schema({f"p{n}": leaf for n in range(5_000)})
    assert (await at.http.post("/v1/chat/completions", json={**body, **wide, "model": "conductor-mini"})).is_success


async def test_items_for_a_conversation_have_the_limits_of_a_request(serve: Serve) -> None:
    at = await serve()
    part = {"type": "input_text", "text": "x"}
    items = [{"role": "user", "content": [part] * 30_000}]
    reply = await at.http.post("/v1/conversations", json={"items": items})
    assert reply.status_code == 400
    assert "JSON values" in reply.json()["error"]["message"]
