"""Effects of one client of a shared server on the others, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from core.runs import SOON, Gated, forever
from rl_conductor.types import Request
from rl_conductor_server.auth.key_secrets import hash_key
from server.chat_requests import BODY, gate, post
from server.conftest import At, Serve, hang_up, until
from server.raw_connections import MORE_THAN_SOCKETS_HOLD, connection

KEYS: Any = {name: {"sha256": hash_key(f"key-of-{name}")} for name in ("red", "blue")}
RED, BLUE = ({"authorization": f"Bearer key-of-{name}"} for name in KEYS)
EVIL = [
    {"sec-fetch-site": "cross-site"},
    *({"origin": origin} for origin in ("https://evil.example", "null", "http://[")),
]
OWN = [{}, {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:1"}, {"origin": "http://localhost:3000"}]


@asynccontextmanager
async def sending(at: At, text: str) -> AsyncGenerator[asyncio.StreamReader, None]:
    """A connection over which this was sent."""
    host, port = at.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode())
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()


def head(path: str, *headers: str) -> str:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", *headers, "", ""])


# ---------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_bodies_that_are_announced_and_not_sent_take_no_room(serve: Serve, path: str) -> None:
    at = await serve(keys=KEYS, intake={"body_bytes": 8_000, "total_body_bytes": 9_000}, batches={"file_bytes": 8_000})
    kind, start = ("multipart/form-data; boundary=x", "--x") if path == "/v1/files" else ("application/json", "{")
    announced = head(path, "authorization: Bearer key-of-red", f"content-type: {kind}", "content-length: 8000")
    async with sending(at, announced + start), sending(at, announced + start):
        await until(lambda: at.service.bodies.reserved == 2 * len(start))
        long = [{"role": "user", "content": "x" * 6_000}]
        assert (await post(at, BLUE, messages=long)).status_code == 200


async def test_requests_of_one_key_leave_room_for_another(serve: Serve) -> None:
    a = Gated("late", forever)
    at = await serve({"a": a}, keys=KEYS, intake={"total_body_bytes": 12_000})
    long = [{"role": "user", "content": "x" * 4_000}]
    first = asyncio.create_task(post(at, RED, messages=long))
    await asyncio.wait_for(a.asked.wait(), SOON)
    refused = await post(at, RED, messages=long)
    assert refused.status_code == 503
    assert "of 8,000 bytes" in refused.text
    a.asked.clear()
    neighbour = asyncio.create_task(post(at, BLUE, messages=long))
    await asyncio.wait_for(a.asked.wait(), SOON)
    for task in (first, neighbour):
        task.cancel()
    await until(lambda: not at.service.bodies.reserved)


async def test_keys_that_take_all_room_leave_some_for_a_short_request_of_another(serve: Serve) -> None:
    keys = {**KEYS, "green": {"sha256": hash_key("key-of-green")}}
    a = Gated("late", forever)
    at = await serve({"a": a}, keys=keys, intake={"total_body_bytes": 200_000})
    long = [{"role": "user", "content": "x" * 99_000}]
    holders = list[asyncio.Task[httpx.Response]]()
    for headers in (RED, BLUE):
        a.asked.clear()
        holders.append(asyncio.create_task(post(at, headers, messages=long)))
        await asyncio.wait_for(a.asked.wait(), SOON)
    green = {"authorization": "Bearer key-of-green"}
    assert (await post(at, green, messages=long)).status_code == 503
    a.asked.clear()
    holders.append(asyncio.create_task(post(at, green, messages=[{"role": "user", "content": "x" * 9_000}])))
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await post(at, green)).status_code == 503  # the second one has to wait
    for task in holders:
        task.cancel()
    await until(lambda: not at.service.bodies.reserved)


@pytest.mark.parametrize("kind", ["background", "idempotent"])
async def test_runs_that_go_on_without_their_client_take_room_until_they_end(serve: Serve, kind: str) -> None:
    opened, wait = gate()
    a = Gated("late", wait)
    at = await serve({"a": a}, intake={"total_body_bytes": 12_000})
    long = "x" * 7_000
    if kind == "background":
        await at.openai().responses.create(model=BODY["model"], input=long, background=True)
    else:
        asking = post(at, {"idempotency-key": "one"}, messages=[{"role": "user", "content": long}])
        await hang_up(asking, once=a.asked)
    await asyncio.wait_for(a.asked.wait(), SOON)
    await until(lambda: 7_000 < at.service.bodies.reserved < 8_000)
    refused = await post(at, messages=[{"role": "user", "content": long}])
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    opened.set()
    await until(lambda: not at.service.bodies.reserved)


async def test_an_answer_that_is_repeated_takes_room(serve: Serve) -> None:
    a = Gated("x" * 30_000, forever)
    at = await serve({"a": "x" * 30_000, "b": a}, intake={"total_body_bytes": 100_000})
    once = {"idempotency-key": "one"}
    assert (await post(at, once)).status_code == 200
    waiting = [{"role": "user", "content": "y" * 90_000}]
    other = asyncio.create_task(post(at, messages=waiting, conductor={"policy": {"deny": ["a"]}}))
    await asyncio.wait_for(a.asked.wait(), SOON)
    refused = await post(at, once)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    other.cancel()
    await until(lambda: not at.service.bodies.reserved)
    assert (await post(at, once)).headers["idempotent-replayed"] == "true"


async def test_an_answer_is_repeated_while_all_slots_are_taken(serve: Serve) -> None:
    a = Gated("late", forever)
    at = await serve({"a": "at once", "b": a}, intake={"running": 1, "waiting": 0})
    once = {"idempotency-key": "one"}
    assert (await post(at, once)).status_code == 200
    other = asyncio.create_task(post(at, conductor={"policy": {"deny": ["a"]}}))
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await post(at, once)).headers["idempotent-replayed"] == "true"
    other.cancel()


async def test_retries_of_one_key_beyond_what_may_wait_are_refused_and_those_of_another_are_not(serve: Serve) -> None:
    at = await serve(keys=KEYS, intake={"waiting": 1})
    once = {"idempotency-key": "one"}
    for headers in (RED, BLUE):
        assert (await post(at, headers | once)).status_code == 200
    async with at.service.runs._replays.slot("red"):
        waiting = asyncio.create_task(post(at, RED | once))
        await until(lambda: at.service.runs._replays.waiting == 1)
        refused = await post(at, RED | once)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await post(at, BLUE | once)).headers["idempotent-replayed"] == "true"
    assert (await waiting).headers["idempotent-replayed"] == "true"


async def test_stored_values_take_room_while_their_client_reads_them(serve: Serve) -> None:
    long = "x" * MORE_THAN_SOCKETS_HOLD
    at = await serve(intake={"total_body_bytes": 10_000_000}, admins={"admin": {"sha256": hash_key("key-of-root")}})
    session = (await at.http.post("/sign-in", data={"key": "key-of-root"}, headers={"origin": at.url})).headers
    cookie = session["set-cookie"].partition(";")[0]
    client = at.openai()
    made = await client.conversations.create()
    added = await client.conversations.items.create(made.id, items=[{"role": "user", "content": long}] * 2)
    response = await client.responses.create(model=BODY["model"], input=long)
    run = f"run-{response.id.removeprefix('resp_')}"
    items = f"/v1/conversations/{made.id}/items"
    inputs = f"/v1/responses/{response.id}/input_items"
    streamed = f"/v1/responses/{response.id}?stream=true"
    rights = f"authorization: Bearer key-of-root\r\ncookie: {cookie}\r\n"
    runs = f"/v1/runs/{run}", f"/admin/runs/{run}", f"/runs/{run}/download"
    for path in (items, f"{items}/{added.data[0].id}", inputs, streamed, *runs):
        async with connection(at) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{rights}\r\n".encode())
            assert b"200" in await reader.readline()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            assert at.service.bodies.reserved > MORE_THAN_SOCKETS_HOLD
            assert (await at.http.get(inputs)).status_code == 503
        await until(lambda: not at.service.bodies.reserved)


async def test_a_long_request_in_the_background_can_be_polled_and_followed_while_it_runs(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a}, intake={"total_body_bytes": 12_000})
    client = at.openai()
    made = await client.responses.create(model=BODY["model"], input="x" * 7_000, background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await client.responses.retrieve(made.id)).status == "in_progress"
    stream = await client.responses.retrieve(made.id, stream=True)
    opened.set()
    assert [event.type async for event in stream][-1] == "response.completed"


async def test_a_response_that_has_ended_takes_room_while_cancelling_returns_it(serve: Serve) -> None:
    at = await serve({"a": "x" * MORE_THAN_SOCKETS_HOLD}, intake={"total_body_bytes": 30_000_000})
    made = await at.openai().responses.create(model=BODY["model"], input="Say it.", background=True)
    path = f"/v1/responses/{made.id}"
    async with asyncio.timeout(SOON):
        while (await at.http.get(path)).json()["status"] in ("queued", "in_progress"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    async with connection(at) as (reader, writer):
        writer.write(head(f"{path}/cancel", "content-length: 0").encode())
        assert b"200" in await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert at.service.bodies.reserved > MORE_THAN_SOCKETS_HOLD
    await until(lambda: not at.service.bodies.reserved)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_takes_room_of_its_key_alone_while_the_client_reads_it(serve: Serve, stream: bool) -> None:
    at = await serve({"a": "x" * MORE_THAN_SOCKETS_HOLD}, keys=KEYS, intake={"total_body_bytes": 2_000_000})
    body = json.dumps(BODY | {"stream": stream})
    rights = "authorization: Bearer key-of-red"
    async with connection(at) as (reader, writer):
        request = head("/v1/chat/completions", rights, "content-type: application/json", f"content-length: {len(body)}")
        writer.write((request + body).encode())
        assert b"200" in await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: at.service.bodies.reserved > MORE_THAN_SOCKETS_HOLD)
        refused = await post(at, RED)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert (await post(at, BLUE)).status_code == 200
    await until(lambda: not at.service.bodies.reserved)


async def test_a_new_conversation_takes_room_while_it_is_read(serve: Serve) -> None:
    at = await serve()
    announced = head("/v1/conversations", "content-type: application/json", "content-length: 8000")
    async with sending(at, announced + "{"):
        await until(lambda: at.service.bodies.reserved == 1)
    await until(lambda: not at.service.bodies.reserved)


# --------------------------------------------------------------------------------------------- framing


async def test_a_request_with_two_lengths_is_rejected_and_its_connection_closed(serve: Serve) -> None:
    at = await serve()
    body = json.dumps(BODY)
    both = head(
        "/v1/chat/completions", "content-type: application/json", "content-length: 4", "transfer-encoding: chunked"
    )
    smuggled = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with sending(at, f"{both}{len(body):x}\r\n{body}\r\n0\r\n\r\n{smuggled}") as reader:
        reply = (await asyncio.wait_for(reader.read(), SOON)).decode()
    assert reply.startswith("HTTP/1.1 400")
    assert reply.count("HTTP/1.1 ") == 1


async def test_two_lengths_are_rejected_by_the_application_too_if_its_server_accepts_them(serve: Serve) -> None:
    at = await serve()
    lengths = {"content-length": "4", "transfer-encoding": "chunked", "host": "localhost"}
    application: Any = at.server.config.app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=application)) as http:
        reply = await http.post("http://localhost/v1/chat/completions", json=BODY, headers=lengths)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "ambiguous_length")
    assert reply.headers["connection"] == "close"


# ------------------------------------------------------------------------------------------- websites


async def upload(at: At, headers: dict[str, str]) -> httpx.Response:
    return await at.http.post(
        "/v1/files", files={"file": ("a.jsonl", b"{}")}, data={"purpose": "batch"}, headers=headers
    )


async def test_without_keys_a_website_can_not_upload_files(serve: Serve) -> None:
    at = await serve()
    for headers in EVIL:
        reply = await upload(at, headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "other_site")
    assert [(await upload(at, headers)).status_code for headers in OWN] == [200] * 3


async def test_with_keys_a_web_application_may_send_requests(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    assert {(await upload(at, headers | RED)).status_code for headers in EVIL} == {200}


# ------------------------------------------------------------------------------------------------ logs


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/files", "multipart/form-data; boundary=x"), ("/v1/conversations", "application/json")],
)
async def test_a_client_that_hangs_up_leaves_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture, path: str, kind: str
) -> None:
    caplog.set_level(logging.INFO, logger="rl_conductor_server.access")
    at = await serve()
    async with sending(at, head(path, f"content-type: {kind}", "content-length: 100") + "--x"):
        await until(lambda: bool(at.server.server_state.tasks))
    await until(lambda: "rl_conductor_server.access" in {record.name for record in caplog.records})
    assert {record.levelname for record in caplog.records if record.name not in {"httpx", "rl_conductor"}} == {"INFO"}
    assert [getattr(record, "status", 200) for record in caplog.records if record.name.endswith(".access")] == [499]


async def test_a_long_path_is_logged_in_part(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rl_conductor_server.access")
    at = await serve(keys=KEYS)
    await at.http.get("/v1/" + "a" * 50_000)
    (line,) = [record for record in caplog.records if record.name.endswith(".access")]
    assert len(line.getMessage()) < 2000


# -------------------------------------------------------------------------------------------- batches


async def create_batch(client: Any, count: int, url: str = "/v1/chat/completions", body: Any = BODY) -> str:
    """Creates a batch of so many requests, and returns its id."""
    lines = [{"custom_id": str(n), "method": "POST", "url": url, "body": body} for n in range(count)]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    return str(made.id)


async def completed(client: Any, batch: str) -> int:
    return int((await client.batches.retrieve(batch)).request_counts.completed)


async def test_a_key_at_its_rate_limit_does_not_keep_batches_of_other_keys_waiting(serve: Serve) -> None:
    keys = {**KEYS, "slow": {"sha256": hash_key("key-of-slow"), "requests_per_minute": 3}}
    at = await serve(keys=keys, batches={"concurrency": 2}, intake={"drain_seconds": 0})
    slow, blue = at.openai("key-of-slow"), at.openai("key-of-blue")
    first = await create_batch(slow, 9)  # two requests of three went to the upload
    async with asyncio.timeout(SOON):
        while not await completed(slow, first):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        second = await create_batch(blue, 6)
        while await completed(blue, second) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await completed(slow, first) < 9


async def test_requests_for_a_locked_conversation_do_not_keep_batches_of_other_keys_waiting(serve: Serve) -> None:
    opened, wait = gate()

    async def wait_in_conversation(request: Request) -> None:
        if "mine" in str(request.messages):
            await wait(request)

    a = Gated("late", wait_in_conversation)
    at = await serve({"a": a}, keys=KEYS, batches={"concurrency": 2})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    conversation = (await red.conversations.create()).id
    body = {"model": BODY["model"], "input": "mine", "conversation": conversation}
    await red.responses.create(**body, background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    first = await create_batch(red, 4, "/v1/responses", body)
    second = await create_batch(blue, 6)
    async with asyncio.timeout(SOON):
        while await completed(blue, second) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert not await completed(red, first)
        opened.set()
        while await completed(red, first) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
