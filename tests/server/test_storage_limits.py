from __future__ import annotations

import asyncio
import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai import AsyncOpenAI
from sqlalchemy import select

from core.runs import SOON, Gated
from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Price
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store.tables import DAY, batches, conversations, responses, runs, stream_pieces
from server.chat_requests import gate
from server.conftest import At, Serve, until

MODEL = "conductor-mini"
CHAT: Any = "/v1/chat/completions"
KEYS = {name: {"sha256": hash_key(f"key-of-{name}")} for name in ("red", "blue")}
TOO_LARGE = 413
STORED_TEXTS = (runs.c.trace, responses.c.parameters, responses.c.input, responses.c.output, stream_pieces.c.body)


def line(number: int, text: str = "Say it.") -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return json.dumps({"custom_id": f"item-{number}", "method": "POST", "url": CHAT, "body": body})


async def upload(client: AsyncOpenAI, *lines: str) -> str:
    return (await client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")).id


async def create(client: AsyncOpenAI, file: str) -> Any:
    return await client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")


async def ended(client: AsyncOpenAI, batch: str) -> Any:
    async with asyncio.timeout(SOON):
        while (found := await client.batches.retrieve(batch)).status in ("in_progress", "finalizing"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def sizes(at: At, column: Any) -> list[int]:
    await at.service.store.write_queue.flush()
    return list((await at.service.store._reader.execute(select(column))).scalars())


def refused(error: pytest.ExceptionInfo[openai.APIStatusError], code: str, status: int = TOO_LARGE) -> bool:
    return (error.value.status_code, error.value.code) == (status, code)


async def test_a_key_can_not_store_more_files_than_allowed_however_small(serve: Serve) -> None:
    at = await serve(keys=KEYS, batches={"key_files": 2})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    first = await upload(red, "")
    await upload(red, "")
    with pytest.raises(openai.APIStatusError, match="this key may have 2 files; delete some first") as error:
        await upload(red, "")
    assert refused(error, "storage_limit_exceeded")
    await upload(blue, "")
    await red.files.delete(first)
    await upload(red, "")


async def test_copies_of_a_file_in_unfinished_batches_count_towards_the_size_of_a_key(serve: Serve) -> None:
    opened, wait = gate()
    at = await serve({"a": Gated("ok", wait)}, batches={"key_bytes": 8_000})
    client = at.openai()
    file = await upload(client, line(1, "x" * 2_000))
    made = [await create(client, file) for _ in range(2)]
    with pytest.raises(openai.APIStatusError, match="8,000 bytes in total; delete files, or wait for batches") as error:
        await create(client, file)
    assert refused(error, "storage_limit_exceeded")
    with pytest.raises(openai.APIStatusError, match="and its unfinished batches may have 8,000 bytes in total"):
        await upload(client, line(1, "x" * 2_000))
    opened.set()
    for batch in made:
        await client.files.delete((await ended(client, batch.id)).output_file_id)
    assert (await ended(client, (await create(client, file)).id)).request_counts.completed == 1


async def test_results_that_exceed_the_size_of_a_key_are_errors(serve: Serve) -> None:
    at = await serve({"a": "y" * 3_000}, batches={"key_bytes": 10_000, "concurrency": 1})
    client = at.openai()
    batch = await ended(client, (await create(client, await upload(client, *map(line, range(4))))).id)
    assert batch.request_counts.completed in (1, 2)
    assert batch.request_counts.completed + batch.request_counts.failed == 4
    text = (await client.files.content(batch.error_file_id)).text
    assert {json.loads(each)["error"]["code"] for each in text.splitlines()} == {"storage_limit_exceeded"}
    (size,) = await sizes(at, batches.c.stored_bytes)
    assert size >= sum([file.bytes async for file in client.files.list(purpose="batch_output")])
    assert sum([file.bytes async for file in client.files.list()]) < 12_000


async def test_a_key_has_a_maximum_number_of_batches_even_if_they_fail_at_once(serve: Serve) -> None:
    at = await serve(keys=KEYS, batches={"key_batches": 2})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    wrong = await upload(red, json.dumps(json.loads(line(1)) | {"url": "/" + "x" * 100_000}))
    for _ in range(2):
        failed = await create(red, wrong)
        assert failed.status == "failed"
        assert len(failed.errors.data[0].message) < 200
    with pytest.raises(openai.RateLimitError, match="2 batches; they are deleted after 30 days") as error:
        await create(red, wrong)
    assert refused(error, "too_many_batches", 429)
    assert (await create(blue, await upload(blue, line(1)))).status == "in_progress"


async def test_a_key_can_not_create_more_conversations_than_allowed(serve: Serve) -> None:
    at = await serve(keys=KEYS, conversations={"key_conversations": 2})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    first = await red.conversations.create()
    second = await red.conversations.create()
    with pytest.raises(openai.APIStatusError, match="this key may have 2 conversations; delete some first") as error:
        await red.conversations.create()
    assert refused(error, "storage_limit_exceeded")
    await red.responses.create(model=MODEL, input="Say it.", conversation=second.id)
    await blue.conversations.create()
    await red.conversations.delete(first.id)
    await red.conversations.create()


async def test_conversations_do_not_grow_beyond_the_size_of_a_key(serve: Serve) -> None:
    at = await serve(conversations={"key_bytes": 2_000})
    client = at.openai()
    item: Any = {"role": "user", "content": "x" * 1_000}
    first = await client.conversations.create(items=[item])
    second = await client.conversations.create(metadata={"a": "b" * 500})
    await client.conversations.items.create(second.id, items=[item])
    more: Any = {"model": MODEL, "input": "Say it.", "conversation": first.id}
    for refused_call in (
        client.conversations.create(),
        client.conversations.items.create(second.id, items=[item]),
        client.responses.create(**more),
    ):
        with pytest.raises(openai.APIStatusError, match="may have 2,000 bytes in total; delete some first") as error:
            await refused_call
        assert refused(error, "storage_limit_exceeded")
    assert (await client.responses.create(**more, store=False)).output_text == "from a"
    (stored,) = [each async for each in client.conversations.items.list(second.id)]
    await client.conversations.items.delete(str(stored.id), conversation_id=second.id)
    assert (await client.responses.create(**more)).output_text == "from a"


async def test_the_size_of_conversations_follows_all_changes(serve: Serve, url: str) -> None:
    at = await serve(store={"url": url})
    client = at.openai()
    made = await client.conversations.create(items=[{"role": "user", "content": "one"}], metadata={"a": "b"})
    await client.responses.create(model=MODEL, input="two", conversation=made.id)
    await client.conversations.update(made.id, metadata={"a": "c" * 100})

    async def check(items: int) -> None:
        listed = [item.to_dict() async for item in client.conversations.items.list(made.id)]
        assert len(listed) == items
        found = await client.conversations.retrieve(made.id)
        expected = sum(len(json.dumps(item)) for item in listed) + len(json.dumps(found.metadata))
        assert await sizes(at, conversations.c.bytes) == [expected]

    await check(3)
    newest, *_ = [item async for item in client.conversations.items.list(made.id)]
    await client.conversations.items.delete(str(newest.id), conversation_id=made.id)
    await check(2)
    cutoff = time.time()
    await client.conversations.items.create(made.id, items=[{"role": "user", "content": "three"}])
    await at.service.store.prune(before=cutoff)
    await check(1)


async def test_feedback_on_a_run_can_not_be_changed_without_end(serve: Serve) -> None:
    at = await serve(
        keys=KEYS, feedback={"run_changes": 3}, admins={"admin": {"sha256": hash_key("the-key-of-the-admin")}}
    )
    made = await at.openai("key-of-red").responses.create(model=MODEL, input="Say it.")
    run, red = f"run-{made.id.removeprefix('resp_')}", {"x-api-key": "key-of-red"}

    async def rate(score: float, headers: dict[str, str], path: str = "/v1") -> Any:
        return await at.http.post(f"{path}/runs/{run}/feedback", json={"score": score}, headers=headers)

    statuses = [(await rate(number / 10, red)).status_code for number in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    reply = (await rate(0.9, red)).json()["error"]
    assert (reply["code"], "was changed 3 times" in reply["message"]) == ("too_many_changes", True)
    assert (await rate(0.9, {"x-api-key": "the-key-of-the-admin"}, "/admin")).status_code == 200


async def test_rejected_requests_take_no_room_in_the_store(serve: Serve) -> None:
    """A key without a budget could fill the disk for free."""
    price = Price(input=Decimal(1), output=Decimal(1))
    broke = {"red": KEYS["red"] | {"usd": 0}}
    at = await serve({"a": ScriptedModel("unused", price=price)}, keys=broke)
    client = at.openai("key-of-red")
    request: Any = {"model": MODEL, "input": "x" * 100_000}
    with pytest.raises(openai.RateLimitError, match="used up"):
        await client.responses.create(**request)
    assert await sizes(at, responses.c.input) == []
    made = await client.responses.create(**request, background=True)
    async with asyncio.timeout(SOON):
        while (reply := await client.responses.retrieve(made.id)).status == "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (reply.status, reply.background) == ("failed", True)
    (item,) = [item async for item in client.responses.input_items.list(made.id)]
    assert "not stored" in str(item)
    assert sum(map(len, map(str, await sizes(at, responses.c.input)))) < 1_000


async def test_a_key_has_a_maximum_number_of_open_streams_that_read_the_store(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a}, keys=KEYS, intake={"streams": 2})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    made = await red.responses.create(model=MODEL, input="Say it.", background=True)
    other = await blue.responses.create(model=MODEL, input="Say it.", background=True)
    streams = [await red.responses.retrieve(made.id, stream=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="2 streams are open") as error:
        await red.responses.retrieve(made.id, stream=True)
    assert refused(error, "too_many_streams", 429)
    assert error.value.response.headers["x-should-retry"] == "true"
    streams.append(await blue.responses.retrieve(other.id, stream=True))
    opened.set()
    for stream in streams:
        assert [event async for event in stream][-1].type == "response.completed"
    await until(lambda: not at.service.streams.count)
    assert [event async for event in await red.responses.retrieve(made.id, stream=True)]


async def test_open_pages_are_limited_too(serve: Serve) -> None:
    at = await serve(intake={"streams": 1})
    async with at.http.stream("GET", "/feed") as feed:
        chunks = feed.aiter_text()
        assert "retry" in await anext(chunks)
        assert (await at.http.get("/feed", timeout=5)).status_code == 429
    await until(lambda: not at.service.streams.count)
    async with at.http.stream("GET", "/feed") as feed:
        assert feed.status_code == 200


async def stored_bytes(at: At) -> int:
    """Returns what all keys store, as it is counted."""
    await at.service.store.write_queue.flush()
    await at.service.keys.refresh()
    return sum((await at.service.store.sizes.totals()).values())


async def measured_bytes(at: At) -> int:
    """Adds up the size of all traces and responses."""
    texts = [text for column in STORED_TEXTS for text in await sizes(at, column)]
    return sum(len(str(text).encode()) for text in texts if text is not None)


async def test_a_key_stores_no_more_runs_than_allowed(serve: Serve, tmp_path: Path) -> None:
    at = await serve(keys=KEYS, store={"url": f"sqlite:///{tmp_path / 'runs.db'}", "key_bytes": 20_000})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    request: Any = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 20_000}]}
    await red.chat.completions.create(**request)
    assert await stored_bytes(at) > 20_000
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    for refused_call in (
        red.chat.completions.create(**request),
        red.chat.completions.create(**request, store=False, tools=[tool]),
        red.chat.completions.create(**request, store=False, extra_headers={"Idempotency-Key": "once"}),
        red.responses.create(model=MODEL, input="Say it."),
        red.chat.completions.create(**request, stream=True),
        at.anthropic("key-of-red").messages.create(**request, max_tokens=9),
    ):
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="may have 20,000 bytes") as error:
            await refused_call
        assert isinstance(error.value, openai.APIStatusError | anthropic.APIStatusError)
        assert error.value.status_code == TOO_LARGE
    before = await stored_bytes(at)
    assert (await red.chat.completions.create(**request, store=False)).choices[0].message.content == "from a"
    assert (await blue.chat.completions.create(**request)).choices[0].message.content == "from a"
    assert await at.service.store.prune(before=time.time() + 2 * DAY)
    assert await stored_bytes(at) == 0 < before
    await red.chat.completions.create(**request)


async def test_runs_that_are_refused_by_a_budget_count_towards_what_a_key_stores(serve: Serve, tmp_path: Path) -> None:
    """A key near the end of its budget could fill the disk for free."""
    price = Price(input=Decimal(1), output=Decimal(1))
    poor = {"red": KEYS["red"] | {"usd": "0.00001"}}
    store = {"url": f"sqlite:///{tmp_path / 'runs.db'}", "key_bytes": 100_000}
    at = await serve({"a": ScriptedModel("unused", price=price)}, keys=poor, store=store)
    client = at.openai("key-of-red")
    request: Any = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 100_000}]}
    with pytest.raises(openai.RateLimitError, match="left of this key's budget"):
        await client.chat.completions.create(**request)
    assert await stored_bytes(at) > 100_000
    with pytest.raises(openai.APIStatusError, match="may have 100,000 bytes"):
        await client.chat.completions.create(**request)


async def test_the_size_of_runs_and_responses_follows_all_changes(serve: Serve, url: str) -> None:
    at = await serve({"a": "Grüße 🎉"}, store={"url": url})
    client = at.openai()
    first = await client.responses.create(model=MODEL, input="Sag Grüße. 🎉")
    second = await client.responses.create(model=MODEL, input="Again.", previous_response_id=first.id)
    async for _ in await client.responses.create(model=MODEL, input="Stream it.", stream=True):
        pass
    background = await client.responses.create(model=MODEL, input="Later.", background=True)
    await until(lambda: at.service.runs.get(f"run-{background.id.removeprefix('resp_')}") is None)
    await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Once."}], extra_headers={"Idempotency-Key": "once"}
    )
    assert await stored_bytes(at) == await measured_bytes(at) > 0
    await client.responses.delete(second.id)
    assert await stored_bytes(at) == await measured_bytes(at) > 0
    await at.service.store.prune(before=time.time() + 2 * DAY)
    assert await stored_bytes(at) == await measured_bytes(at) == 0


async def test_a_failed_run_that_is_repeated_counts_once(serve: Serve, url: str) -> None:
    at = await serve({"a": ScriptedModel([ModelError("out of order", model="a"), "from a"])}, store={"url": url})
    request: Any = {"model": MODEL, "input": "Say it.", "extra_headers": {"Idempotency-Key": "once"}}
    with pytest.raises(openai.APIStatusError):
        await at.openai().responses.create(**request)
    assert (await at.openai().responses.create(**request)).output_text == "from a"
    assert await stored_bytes(at) == await measured_bytes(at) > 0


async def test_the_log_warns_of_a_key_that_has_stored_most_of_what_it_may(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = await serve(store={"url": f"sqlite:///{tmp_path / 'runs.db'}", "key_bytes": 20_000})
    await at.openai().responses.create(model=MODEL, input="x" * 18_000)
    await stored_bytes(at)
    await stored_bytes(at)
    warnings = [record.getMessage() for record in caplog.records if "of at most" in record.getMessage()]
    assert len(warnings) == 1
    assert "the key 'local' stores" in warnings[0]
