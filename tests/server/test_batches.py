"""`/v1/files` and `/v1/batches`, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai import AsyncOpenAI
from sqlalchemy import update

from core.runs import SOON
from rl_conductor.errors import RateLimitError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.batches.input_file import read_items
from rl_conductor_server.settings import BatchEntry
from rl_conductor_server.store import Store, StoredBatch
from rl_conductor_server.store.batches.batches import BatchLimits
from rl_conductor_server.store.tables import batches
from server.conftest import At, Serve, until, usage_of_key
from server.raw_connections import MORE_THAN_SOCKETS_HOLD, connection

MODEL = "conductor-mini"
CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
KEYS = {name: {"sha256": hash_key(f"key-of-{name}")} for name in ("red", "blue")}


def chat(number: int, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"Question {number}."}], **more}
    return {"custom_id": f"item-{number}", "method": "POST", "url": CHAT, "body": body}


async def upload(client: AsyncOpenAI, lines: Sequence[Any]) -> str:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return (await client.files.create(file=("in.jsonl", text.encode()), purpose="batch")).id


async def create(client: AsyncOpenAI, lines: Sequence[Any], endpoint: Any = CHAT) -> Any:
    file = await upload(client, lines)
    return await client.batches.create(
        input_file_id=file, endpoint=endpoint, completion_window="24h", metadata={"team": "red"}
    )


async def ended(client: AsyncOpenAI, batch: str) -> Any:
    async with asyncio.timeout(SOON):
        while (found := await client.batches.retrieve(batch)).status in (  # noqa: ASYNC110
            *("validating", "in_progress", "finalizing", "cancelling"),
        ):
            await asyncio.sleep(0.02)
    return found


async def results(client: AsyncOpenAI, file: str | None) -> dict[str, Any]:
    """The lines of a file by their custom id."""
    if file is None:
        return {}
    text = (await client.files.content(file)).text
    assert (await client.files.retrieve(file)).bytes == len(text.encode())
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["custom_id"]: line for line in lines}


def repeat(worker: str = "from a") -> ScriptedModel:
    return ScriptedModel(lambda request: f"{worker}: {request.messages[-1].text[-200:]}")


async def stall(at: At, path: str) -> tuple[bytes, int]:
    """Requests a file and reads only the first line, and the room that the file takes, until the server hangs up."""
    async with connection(at) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        status = await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        reserved = at.service.bodies.reserved
        await until(lambda: not at.service.bodies.reserved)
        await at.http.aclose()
        await until(lambda: not at.server.server_state.connections)
    return status, reserved


@pytest.mark.parametrize("part", ["input", "output"])
async def test_a_client_that_stops_reading_a_file_is_disconnected(serve: Serve, part: str) -> None:
    size = MORE_THAN_SOCKETS_HOLD // 8
    at = await serve({"a": "x" * size}, intake={"client_seconds": 0.4})
    client = at.openai()
    made = await create(client, [chat(number) for number in range(8)])
    batch = await ended(client, made.id)
    file = batch.output_file_id if part == "output" else await upload(client, ["x" * size] * 8)
    await client.close()
    status, reserved = await stall(at, f"/v1/files/{file}/content")
    assert b"200" in status
    assert reserved == (2**20 if part == "output" else 8 * size + 7)


async def test_a_batch_of_twenty_requests_is_answered_in_one_output_file(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    made = await create(client, [chat(number) for number in range(20)])
    assert (made.status, made.request_counts.total) == ("in_progress", 20)
    batch = await ended(client, made.id)
    assert (batch.status, batch.error_file_id, batch.metadata) == ("completed", None, {"team": "red"})
    assert batch.completed_at >= batch.in_progress_at >= batch.created_at
    assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 0)
    lines = await results(client, batch.output_file_id)
    assert lines.keys() == {f"item-{number}" for number in range(20)}
    response = lines["item-7"]["response"]
    assert (response["status_code"], lines["item-7"]["error"]) == (200, None)
    assert response["body"]["choices"][0]["message"]["content"] == "from a"
    run = await at.service.store.get_run(response["request_id"])
    assert run is not None
    assert (run.status, run.question) == ("done", "Question 7.")


async def test_a_batch_of_responses_is_stored_as_responses_are(serve: Serve) -> None:
    client = (await serve()).openai()
    line = {"custom_id": "x", "method": "POST", "url": RESPONSES, "body": {"model": MODEL, "input": "Say it."}}
    batch = await ended(client, (await create(client, [line], RESPONSES)).id)
    body = (await results(client, batch.output_file_id))["x"]["response"]["body"]
    assert (await client.responses.retrieve(body["id"])).output_text == "from a"


async def test_requests_without_an_answer_are_in_the_error_file(serve: Serve) -> None:
    client = (await serve({"a": "from a", "b": "from b"})).openai()
    bad = [chat(1, messages=[]), chat(2, stream=True), chat(3, model="no-such-model")]
    batch = await ended(client, (await create(client, [chat(0), *bad])).id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 3)
    assert (await results(client, batch.output_file_id)).keys() == {"item-0"}
    errors = await results(client, batch.error_file_id)
    assert [errors[f"item-{number}"]["response"]["status_code"] for number in (1, 2, 3)] == [400, 400, 404]
    assert "stream can't be used in a batch" in errors["item-2"]["response"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("lines", "line", "code"),
    [
        ([chat(1), "{no json"], 2, "invalid_json_line"),
        ([chat(1), chat(1)], 2, "duplicate_custom_id"),
        ([{**chat(1), "url": RESPONSES}], 1, "mismatched_url"),
        ([{"custom_id": "x", "url": CHAT}], 1, "invalid_request"),
        ([chat(1), chat(2), chat(3)], None, "too_many_requests"),
        ([{**chat(1), "custom_id": "a\0b"}], 1, "invalid_request"),
        ([{**chat(1), "custom_id": "é" * 257}], 1, "invalid_request"),
        (["\n"], None, "empty_file"),
        (["\n\n\n\n"], None, "too_many_requests"),
        ([chat(1, user="x" * 2_000)], 1, "request_too_large"),
    ],
)
async def test_a_file_with_a_bad_line_is_rejected_as_a_whole(serve: Serve, lines: Any, line: Any, code: str) -> None:
    a = repeat()
    client = (await serve({"a": a}, batches={"lines": 2}, intake={"body_bytes": 1_500})).openai()
    batch = await create(client, lines)
    assert (batch.status, batch.request_counts.total) == ("failed", 0)
    (error,) = batch.errors.data
    assert (error.line, error.code) == (line, code)
    assert batch.failed_at
    assert not a.requests


@pytest.mark.parametrize(
    ("line", "message", "param"),
    [
        ("[1]", "write one JSON object on each line", None),
        ("{", "write one JSON object on each line", None),
        (json.dumps(chat(1) | {"method": "GET"}), "method must be 'POST'", "method"),
        (json.dumps(chat(1) | {"body": []}), "body must be an object", "body"),
        (json.dumps(chat(1) | {"custom_id": 1}), "custom_id must be a string", "custom_id"),
        (json.dumps({"custom_id": "x", "body": {}}), "url is missing", "url"),
    ],
)
def test_an_error_in_a_line_names_the_field_in_the_words_of_json(line: str, message: str, param: str | None) -> None:
    _, (error,) = read_items(line, CHAT, BatchEntry(), max_body_bytes=1_000)
    assert (error.message, error.param) == (f"line 1 is not a request: {message}", param)


async def test_a_line_ends_only_where_json_lines_do(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    question = "one\u2028two\x85three"
    line = chat(1, messages=[{"role": "user", "content": question}])
    batch = await ended(client, (await create(client, [json.dumps(line, ensure_ascii=False)])).id)
    (run,) = await at.service.store.list_runs()
    assert (batch.status, run.question) == ("completed", question)


async def test_files_and_batches_of_another_key_are_not_found(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    batch = await ended(red, (await create(red, [chat(1)])).id)
    files: Any = blue.files
    for file in (batch.input_file_id, batch.output_file_id):
        for reach in (files.retrieve, files.content, files.delete):
            with pytest.raises(openai.NotFoundError):
                await reach(file)
    batches: Any = blue.batches
    for reach in (batches.retrieve, batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await reach(batch.id)
    with pytest.raises(openai.NotFoundError):
        await batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert [made async for made in blue.batches.list()] == []
    assert [made async for made in blue.files.list()] == []
    assert (await results(red, batch.output_file_id)).keys() == {"item-1"}


async def test_files_and_batches_are_listed_by_page_and_deleted(serve: Serve) -> None:
    client = (await serve(batches={"concurrency": 0})).openai()
    made = [await create(client, [chat(number)]) for number in range(3)]
    assert [batch.id async for batch in client.batches.list(limit=1)] == [batch.id for batch in reversed(made)]
    inputs = [batch.input_file_id for batch in made]
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == inputs
    assert (await client.files.content(inputs[0])).text == json.dumps(chat(0))
    await client.files.delete(inputs[0])
    assert [file.id async for file in client.files.list(order="asc")] == inputs[1:]


async def test_a_cancelled_batch_keeps_the_results_so_far(serve: Serve, tmp_path: Path) -> None:
    a = ScriptedModel("from a", delay=lambda request: 0.0 if "Question 0" in str(request.messages) else 3_600.0)
    at = await serve({"a": a, "b": "unused"}, store=shared(tmp_path))
    client = at.openai()
    made = await create(client, [chat(number) for number in range(12)])
    await until(lambda: len(a.requests) == 5)  # the one that has ended, and as many as are processed at once
    assert (await client.batches.cancel(made.id)).status == "cancelling"
    batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.completed) == ("cancelled", 1)
    assert batch.cancelled_at >= batch.cancelling_at
    assert (await results(client, batch.output_file_id)).keys() == {"item-0"}
    assert (await client.batches.cancel(made.id)).status == "cancelled"
    assert (a.in_flight, len(a.requests)) == (0, 5)
    assert {run.status for run in await at.service.store.list_runs()} == {"done", "cancelled"}


@pytest.mark.parametrize("concurrency", [0, 1], ids=["queued", "running"])
async def test_nothing_of_a_cancelled_request_is_stored(serve: Serve, tmp_path: Path, concurrency: int) -> None:
    a = ScriptedModel("never", delay=3_600.0)
    at = await serve({"a": a, "b": a}, store=shared(tmp_path), batches={"concurrency": concurrency})
    client = at.openai()
    made = await create(client, [chat(number) for number in range(3)])
    await until(lambda: len(a.requests) == concurrency)
    await client.batches.cancel(made.id)
    assert (await ended(client, made.id)).status == "cancelled"
    with closing(sqlite3.connect(tmp_path / "shared.db")) as database:
        assert database.execute("SELECT count(*) FROM batch_items").fetchone() == (0,)


def shared(folder: Path) -> dict[str, Any]:
    """A store with short leases, so that processes soon notice what others did."""
    return {"url": f"sqlite:///{folder / 'shared.db'}", "lease_seconds": 1.0}


async def test_a_private_request_leaves_no_content_but_its_result(serve: Serve) -> None:
    broken = ScriptedModel(lambda request: "answer-42" if "Question 0" in str(request.messages) else "", name="x")
    at = await serve({"a": broken, "b": broken})
    client = at.openai()
    lines = [chat(number, store=False, conductor={"policy": {"allow": ["a"]}}) for number in range(2)]
    batch = await ended(client, (await create(client, lines)).id)
    assert (await results(client, batch.output_file_id)).keys() == {"item-0"}
    for file in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
        if file is not None:
            await client.files.delete(file)
    await at.service.store.write_queue.flush()
    with closing(sqlite3.connect(at.service.settings.store.url.removeprefix("sqlite:///"))) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")]
        dump = "\n".join(str(row) for table in tables for row in database.execute(f"SELECT * FROM {table}"))
        for index in ("indexed_runs", "unindexed_runs"):
            assert database.execute(f"SELECT count(*) FROM {index}").fetchone() == (0,)
    assert set((await at.service.store.sizes.totals()).values()) <= {0}
    assert "item-0" in dump
    assert "Question" not in dump
    assert "answer-42" not in dump


async def test_the_budget_and_the_models_of_a_key_hold_for_each_request(serve: Serve) -> None:
    limited = {**KEYS["red"], "tokens": 360, "models": [MODEL]}
    at = await serve(keys={"red": limited, "blue": KEYS["blue"]}, batches={"concurrency": 1})
    client = at.openai("key-of-red")
    lines = [chat(number, max_tokens=300) for number in range(30)]
    batch = await ended(client, (await create(client, [*lines, chat(99, model="conductor-ultra")])).id)
    errors = await results(client, batch.error_file_id)
    assert batch.request_counts.completed > 0
    assert errors.pop("item-99")["response"]["status_code"] == 403
    assert {line["response"]["status_code"] for line in errors.values()} == {429}
    assert {line["response"]["body"]["error"]["code"] for line in errors.values()} == {"insufficient_quota"}
    assert (await usage_of_key(at.service.store, "red")).total_tokens <= 360


async def test_requests_wait_for_the_rate_limit_of_their_key(serve: Serve) -> None:
    keys = {"red": {**KEYS["red"], "requests_per_minute": 600}}
    front, back = await serve(keys=keys, batches={"concurrency": 0}), await serve(keys=keys)
    (key,) = back.service.keys
    for _ in range(600):
        key.check_rate()
    began = time.monotonic()
    client = front.openai("key-of-red")
    batch = await ended_at(back, (await create(client, [chat(number) for number in range(4)])).id, "red")
    assert batch.completed == 4
    assert time.monotonic() - began > 0.25


async def test_a_key_that_was_revoked_ends_its_requests(serve: Serve) -> None:
    at = await serve(keys={"red": KEYS["red"]}, batches={"concurrency": 0})
    made = await create(at.openai("key-of-red"), [chat(1)])
    other = await serve(keys={"blue": KEYS["blue"]})
    batch = await ended_at(other, made.id, "red")
    assert (batch.status, batch.failed) == ("completed", 1)


async def test_a_server_answers_the_requests_of_a_key_that_another_has_just_created(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_conductor_server.service.REFRESH_SECONDS", 3_600.0)
    options: Any = {"store": shared(tmp_path), "keys": {"red": KEYS["red"]}, "admins": {"ann": KEYS["blue"]}}
    front, back = await serve(**options, batches={"concurrency": 0}), await serve(**options)
    admin = {"authorization": "Bearer key-of-blue"}
    key = (await front.http.post("/admin/keys", json={"name": "new"}, headers=admin)).json()["key"]
    made = await create(front.openai(key), [chat(1)])
    batch = await ended_at(back, made.id, "new")
    assert (batch.completed, batch.failed) == (1, 0)


async def ended_at(at: At, batch: str, key: str) -> StoredBatch:
    """The batch once it has ended, from the store."""
    async with asyncio.timeout(SOON):
        while True:
            found = await at.service.store.batches.get(batch, key=key)
            if found is not None and found.ended is not None:
                return found
            await asyncio.sleep(0.02)


async def test_a_reply_above_the_limit_is_an_error(serve: Serve) -> None:
    client = (await serve({"a": "long " * 1_000, "b": "unused"}, batches={"reply_bytes": 2_048})).openai()
    batch = await ended(client, (await create(client, [chat(1)])).id)
    assert batch.output_file_id is None
    error = (await results(client, batch.error_file_id))["item-1"]
    assert (error["response"], error["error"]["code"]) == (None, "reply_too_large")


async def test_uploads_are_limited_and_checked(serve: Serve) -> None:
    at = await serve(batches={"file_bytes": 4_096, "key_bytes": 5_000, "concurrency": 0, "unfinished": 1})
    client = at.openai()
    file = await upload(client, [chat(1)])
    with pytest.raises(openai.APIStatusError, match="larger than 4,096 bytes") as error:
        await client.files.create(file=b"x" * 4_097, purpose="batch")
    assert error.value.status_code == 413
    await client.files.create(file=b"x" * 1_000, purpose="batch")
    with pytest.raises(openai.APIStatusError, match="may have 5,000 bytes in total") as error:
        await client.files.create(file=b"x" * 4_096, purpose="batch")
    assert error.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="purpose must be 'batch'"):
        await client.files.create(file=b"x", purpose="assistants")
    with pytest.raises(openai.BadRequestError, match="UTF-8"):
        await client.files.create(file=b"\xff\xfe\xff", purpose="batch")
    without_file = await at.http.post("/v1/files", files={"other": b"x"}, data={"purpose": "batch"})
    assert (without_file.status_code, without_file.json()["error"]["param"]) == (400, "file")
    broken = await at.http.post(
        "/v1/files", content=b"no form", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert broken.status_code == 400
    assert (await at.http.post("/v1/files", json={})).status_code == 415
    request: Any = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    await client.batches.create(**request)
    with pytest.raises(openai.RateLimitError, match="1 batches that have not ended"):
        await client.batches.create(**request)
    with pytest.raises(openai.BadRequestError, match="at most 64 characters"):
        await client.batches.create(**request | {"metadata": {"x" * 65: "y"}})
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        await client.batches.create(**request | {"endpoint": "/v1/embeddings"})


async def test_two_servers_share_the_requests_of_a_batch(serve: Serve, tmp_path: Path) -> None:
    workers = [ScriptedModel("one", delay=0.04), ScriptedModel("two", delay=0.04)]
    options: dict[str, Any] = {"store": shared(tmp_path), "batches": {"concurrency": 2}}
    servers = [await serve({"a": worker, "b": "unused"}, **options) for worker in workers]
    client = servers[0].openai()
    batch = await ended(client, (await create(client, [chat(number) for number in range(80)])).id)
    assert batch.request_counts.completed == 80
    assert sum(len(worker.requests) for worker in workers) == 80
    assert all(worker.requests for worker in workers)


async def test_a_short_batch_does_not_wait_for_a_long_one(serve: Serve) -> None:
    at = await serve(batches={"concurrency": 0})
    client = at.openai()
    long = await create(client, [chat(number) for number in range(50)])
    short = await create(client, [chat(1)])
    claimed = await at.service.store.items.claim(2)
    assert [item.batch for item in claimed] == [long.id, short.id]


async def test_a_server_that_stops_puts_its_requests_back_into_the_queue(serve: Serve, tmp_path: Path) -> None:
    slow = ScriptedModel("never", delay=3_600.0)
    at = await serve({"a": slow, "b": "unused"}, store=shared(tmp_path), intake={"drain_seconds": 0})
    made = await create(at.openai(), [chat(1)])
    await until(lambda: len(slow.requests) == 1)
    await at.server.lifespan.shutdown()
    after = await serve(store={**shared(tmp_path), "lease_seconds": 3_600.0})  # no lease expires meanwhile
    batch = await ended(after.openai(), made.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 1)


async def test_what_is_left_of_an_expired_batch_is_in_the_error_file(serve: Serve, tmp_path: Path) -> None:
    at = await serve(store=shared(tmp_path), batches={"concurrency": 0})
    client = at.openai()
    made = await create(client, [chat(1), chat(2)])
    expire = update(batches).where(batches.c.id == made.id).values(expires=0.0)
    await at.service.store.write_queue.execute(lambda connection: connection.execute(expire).close())
    batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.failed) == ("expired", 2)
    error = (await results(client, batch.error_file_id))["item-2"]["error"]
    assert error == {"code": "batch_expired", "message": "the batch expired before this request was processed"}


async def test_a_batch_whose_server_died_while_it_was_created_fails(serve: Serve, tmp_path: Path) -> None:
    at = await serve(store=shared(tmp_path))
    lost = StoredBatch(
        id="batch_x", key="local", endpoint=CHAT, input_file="file-x", created=0.0, expires=1e12, total=1
    )
    await at.service.store.batches.add(lost, [], BatchLimits(unfinished=1, count=1, bytes=0))
    batch = await ended(at.openai(), "batch_x")
    assert batch.status == "failed"
    assert "create the batch again" in batch.errors.data[0].message


async def test_a_request_that_kills_its_process_is_given_up_after_five_attempts(serve: Serve) -> None:
    at = await serve(batches={"concurrency": 0})
    client = at.openai()
    made = await create(client, [chat(1)])
    for _ in range(5):  # with a lease of no time, each process counts as dead at once
        process = await Store.open(at.service.settings.store.url, lease=0.0)
        assert len(await process.items.claim(1)) == 1
        await process.aclose()
    last = await Store.open(at.service.settings.store.url, lease=0.0)
    assert await last.items.claim(1) == []
    await last.aclose()
    batch = await client.batches.retrieve(made.id)
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)


async def test_a_cancelled_batch_ends_although_its_process_died(serve: Serve, tmp_path: Path) -> None:
    at = await serve(store=shared(tmp_path), batches={"concurrency": 0})
    client = at.openai()
    made = await create(client, [chat(1)])
    dead = await Store.open(at.service.settings.store.url, lease=1.0)
    await dead.items.claim(1)
    await dead.aclose()
    await client.batches.cancel(made.id)
    assert (await ended(client, made.id)).status == "cancelled"
    with closing(sqlite3.connect(tmp_path / "shared.db")) as database:
        assert database.execute("SELECT count(*) FROM batch_items").fetchone() == (0,)


async def test_a_batch_that_is_cancelled_while_its_result_waits_for_the_store_ends(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await serve(store=shared(tmp_path))
    items, is_waiting = at.service.store.items, asyncio.Event()
    finish = items.finish

    async def wait_once(*arguments: Any, **options: Any) -> Any:
        if not is_waiting.is_set():
            is_waiting.set()
            await asyncio.Event().wait()  # until the task is cancelled
        return await finish(*arguments, **options)

    monkeypatch.setattr(items, "finish", wait_once)
    made = await create(at.openai(), [chat(1)])
    await asyncio.wait_for(is_waiting.wait(), SOON)
    await at.openai().batches.cancel(made.id)
    batch = await ended(at.openai(), made.id)
    assert (batch.status, batch.request_counts.completed) == ("cancelled", 1)


async def test_a_process_does_not_claim_its_own_active_items_again(serve: Serve) -> None:
    at = await serve(batches={"concurrency": 0})
    await create(at.openai(), [chat(1)])
    process = await Store.open(at.service.settings.store.url, lease=0.0)  # each lease is over at once
    (item,) = await process.items.claim(1)
    assert await process.items.claim(1, active=[item.place]) == []
    assert [again.line for again in await process.items.claim(1)] == [item.line]
    await process.aclose()


async def test_an_unexpected_error_does_not_end_the_work_on_batches(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rl_conductor_server.batches.processor.POLL_SECONDS", 0.01)
    at = await serve()
    items, failures = at.service.store.items, iter([RuntimeError("odd")])
    can_claim = items.can_claim

    async def fail_once() -> bool:
        for failure in failures:
            raise failure
        return await can_claim()

    monkeypatch.setattr(items, "can_claim", fail_once)
    made = await create(at.openai(), [chat(1)])
    assert (await ended(at.openai(), made.id)).status == "completed"
    assert "claiming items of batches failed" in caplog.text


async def test_a_request_rejected_because_of_overload_is_tried_again(serve: Serve) -> None:
    tries: list[int] = []

    def overloaded(_: Any) -> Any:
        tries.append(1)
        return RateLimitError("busy", model="a", status=429, retry_after=0.1) if len(tries) < 6 else "at last"

    limits = {"policy": {"allow": ["a"]}}
    client = (await serve({"a": ScriptedModel(overloaded), "b": "unused"})).openai()
    batch = await ended(client, (await create(client, [chat(1, conductor=limits)])).id)
    assert await results(client, batch.error_file_id) == {}
    assert (await results(client, batch.output_file_id)).keys() == {"item-1"}


async def test_old_batches_are_deleted_with_their_files(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    batch = await ended(client, (await create(client, [chat(1)])).id)
    await at.service.store.prune(before=batch.created_at + 60)
    assert [made async for made in client.batches.list()] == []
    assert [made async for made in client.files.list()] == []
