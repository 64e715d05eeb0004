from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import func, select, update

from core.runs import SOON, Gated, Paced
from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import write_behind
from rl_conductor_server.store.tables import runs, stream_pieces
from server.chat_requests import gate
from server.conftest import At, Serve, sent_events, until

MODEL = "conductor-mini"
BACKGROUND: Any = {"model": MODEL, "input": "Count.", "background": True, "stream": True}


def counting() -> tuple[asyncio.Event, Paced]:
    """A model that counts to four and waits after two for an event, and this event."""
    opened = asyncio.Event()

    async def pause(text: str) -> None:
        if text.endswith("two "):
            await asyncio.wait_for(opened.wait(), SOON)

    return opened, Paced("one two three four", pause)


async def read(stream: Any, *, until_text: str | None = None) -> list[Any]:
    """The events of a stream, to its end or until a piece of the answer."""
    events = []
    async with asyncio.timeout(SOON):
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and event.delta == until_text:
                await stream.close()
                break
    return events


def numbers(events: list[Any]) -> list[int]:
    return [event.sequence_number for event in events]


def text(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def resume(at: At, response: str, after: int) -> list[Any]:
    return await read(await at.openai().responses.retrieve(response, stream=True, starting_after=after))


async def count_rows(at: At) -> int:
    store = at.service.store
    await store.write_queue.flush()
    return int((await store._reader.execute(select(func.count()).select_from(stream_pieces))).scalar_one())


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_stream_in_the_background_is_resumed_where_it_broke_off_while_it_goes_on(
    serve: Serve, url: str, elsewhere: bool
) -> None:
    opened, model = counting()
    one = await serve({"a": model}, store={"url": url})
    other = await serve({"a": "unused"}, store={"url": url}) if elsewhere else one
    first = await read(await one.openai().responses.create(**BACKGROUND), until_text="two ")
    response = first[0].response.id
    resumed = await other.openai().responses.retrieve(response, stream=True, starting_after=first[-2].sequence_number)
    seen = await read_one(resumed)  # while the model waits
    assert (seen.delta, seen.sequence_number) == ("two ", first[-1].sequence_number)
    opened.set()
    rest = await read(resumed)
    assert numbers([*first, *rest]) == list(range(len(first) + len(rest)))
    assert text([*first, *rest]) == "one two three four"
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "one two three four"


async def read_one(stream: Any) -> Any:
    async with asyncio.timeout(SOON):
        return await anext(aiter(stream))


@pytest.mark.parametrize("more", [{}, {"extra_body": {"conductor": {"progress": "chunks"}}}], ids=["", "progress"])
async def test_a_stored_stream_has_the_same_events_with_the_same_numbers(
    serve: Serve, url: str, more: dict[str, Any]
) -> None:
    one = await serve({"a": "one two three"}, store={"url": url})
    events = await read(await one.openai().responses.create(model=MODEL, input="Count.", stream=True, **more))
    other = await serve({"a": "unused"}, store={"url": url})
    response = events[0].response.id
    assert [event.type for event in events].count("response.output_text.delta") == 3
    assert ("conductor.progress" in [event.type for event in events]) == bool(more)
    for after in range(len(events)):
        tail = await resume(other, response, after)
        assert [event.to_dict() for event in tail[:-1]] == [event.to_dict() for event in events[after + 1 : -1]]
    again = await read(await other.openai().responses.retrieve(response, stream=True))
    assert numbers(again) == numbers(events)
    assert again[-1].response.output == events[-1].response.output
    assert again[-1].response.usage == events[-1].response.usage


async def test_a_response_that_was_not_streamed_can_be_streamed_afterwards(serve: Serve) -> None:
    client = (await serve({"a": "one two"})).openai()
    made = await client.responses.create(model=MODEL, input="Count.")
    events = await read(await client.responses.retrieve(made.id, stream=True))
    assert text(events) == "one two"
    assert events[-1].response.to_dict() | {"conductor": None} == made.to_dict() | {"conductor": None}


async def test_the_helper_of_the_client_accumulates_a_resumed_stream(serve: Serve) -> None:
    opened, model = counting()
    client = (await serve({"a": model})).openai()
    first = await read(await client.responses.create(**BACKGROUND), until_text="two ")
    opened.set()
    async with client.responses.stream(response_id=first[0].response.id, starting_after=first[-1].sequence_number) as s:
        events = [event async for event in s]
        assert (await s.get_final_response()).output_text == "one two three four"
    assert events[0].sequence_number == first[-1].sequence_number + 1


async def test_a_resumed_stream_ends_with_the_failure_of_its_response(serve: Serve, tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'shared.db'}"}
    broken: Any = ["one ", ModelError("the line went dead", model="a")]
    at = await serve({"a": ScriptedModel([broken])}, store=store)
    body = {"model": MODEL, "input": "Count.", "stream": True}
    first = sent_events(await at.http.post("/v1/responses", json=body))
    await at.service.store.write_queue.flush()
    other = await serve({"a": "unused"}, store=store)
    query = {"stream": True, "starting_after": first[-3]["sequence_number"]}
    rest = sent_events(await other.http.get(f"/v1/responses/{first[0]['response']['id']}", params=query))
    assert [(event["type"], event["sequence_number"]) for event in rest] == [
        ("error", first[-2]["sequence_number"]),
        ("response.failed", first[-1]["sequence_number"]),
    ]
    assert "the line went dead" in rest[0]["message"]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_resumed_stream_ends_when_its_response_is_cancelled(
    serve: Serve, tmp_path: Path, elsewhere: bool
) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'shared.db'}"}
    _, model = counting()
    one = await serve({"a": model}, store=store)
    other = await serve({"a": "unused"}, store=store) if elsewhere else one
    first = await read(await one.openai().responses.create(**BACKGROUND), until_text="two ")
    response, after = first[0].response.id, first[-1].sequence_number
    stream = await other.openai().responses.retrieve(response, stream=True, starting_after=after)
    assert (await one.openai().responses.cancel(response)).status == "cancelled"
    (last,) = await read(stream)
    assert (last.type, last.response.status, last.response.error) == ("response.failed", "cancelled", None)
    assert last.sequence_number == after + 1


async def test_a_server_that_stops_lets_go_of_streams_of_other_servers(serve: Serve, tmp_path: Path) -> None:
    store = {"url": f"sqlite:///{tmp_path / 'shared.db'}"}
    opened, model = counting()
    one, other = await serve({"a": model}, store=store), await serve({"a": "unused"}, store=store)
    first = await read(await one.openai().responses.create(**BACKGROUND), until_text="two ")
    stream = await other.openai().responses.retrieve(first[0].response.id, stream=True)
    assert (await read_one(stream)).type == "response.created"
    other.service.stopping.set()
    assert [event.type for event in await read(stream)][-1] != "response.completed"
    opened.set()
    assert text(await resume(one, first[0].response.id, 3)) == "one two three four"


async def test_what_a_stream_sent_is_deleted_with_its_response(serve: Serve) -> None:
    at = await serve({"a": "a secret"})
    responses = at.openai().responses
    made = [(await read(await responses.create(model=MODEL, input="Say it.", stream=True)))[0] for _ in range(2)]
    assert await count_rows(at) == 2
    await responses.delete(made[0].response.id)
    assert await count_rows(at) == 1
    await at.service.store.prune(before=made[1].response.created_at + 60)
    assert await count_rows(at) == 0


async def test_nothing_of_a_stream_with_store_false_is_stored(serve: Serve) -> None:
    at = await serve({"a": "a secret"})
    events = await read(await at.openai().responses.create(model=MODEL, input="Say it.", stream=True, store=False))
    with pytest.raises(openai.NotFoundError):
        await at.openai().responses.retrieve(events[0].response.id, stream=True)
    assert await count_rows(at) == 0


async def test_a_retry_with_the_same_idempotency_key_does_not_store_its_stream_again(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("one two", wait)
    at = await serve({"a": a})
    request: Any = {"model": MODEL, "input": "Count.", "stream": True, "extra_headers": {"Idempotency-Key": "once"}}
    first = asyncio.create_task(_create_and_read(at, request))
    await asyncio.wait_for(a.asked.wait(), SOON)
    second = await at.openai().responses.create(**request)
    opened.set()
    events, same = await first, await read(second)
    await _create_and_read(at, request)
    assert numbers(events) == numbers(same)
    again = await read(await at.openai().responses.retrieve(events[0].response.id, stream=True))
    assert numbers(again) == numbers(events)
    assert text(again) == "one two"


async def _create_and_read(at: At, request: Any) -> list[Any]:
    return await read(await at.openai().responses.create(**request))


async def test_a_stream_can_only_be_resumed_with_its_key_and_a_valid_number(serve: Serve) -> None:
    keys = {name: {"sha256": hash_key(f"key-of-{name}")} for name in ("red", "blue")}
    at = await serve(keys=keys)
    red = at.openai("key-of-red")
    made = await red.responses.create(model=MODEL, input="Say it.")
    with pytest.raises(openai.NotFoundError):
        await at.openai("key-of-blue").responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="starting_after needs stream=true"):
        await red.responses.retrieve(made.id, starting_after=1)
    with pytest.raises(openai.BadRequestError, match="greater than or equal to 0"):
        await red.responses.retrieve(made.id, stream=True, starting_after=-1)
    assert await read(await red.responses.retrieve(made.id, stream=True, starting_after=1_000)) == []


async def test_a_reader_of_a_stream_that_leaves_does_not_stop_a_response_in_the_background(serve: Serve) -> None:
    opened, model = counting()
    at = await serve({"a": model})
    first = await read(await at.openai().responses.create(**BACKGROUND), until_text="two ")
    await read(await at.openai().responses.retrieve(first[0].response.id, stream=True), until_text="two ")
    opened.set()
    run = f"run-{first[0].response.id.removeprefix('resp_')}"
    await until(lambda: at.service.runs.get(run) is None)
    assert (await at.openai().responses.retrieve(first[0].response.id)).output_text == "one two three four"


async def test_the_stream_of_a_run_that_is_repeated_replaces_that_of_the_earlier_attempt(
    serve: Serve, url: str
) -> None:
    """The pieces of a server that died must not mix with those of the one that continues its run."""
    at = await serve({"a": ScriptedModel(["one two", "three four five"])}, store={"url": url})
    request: Any = {"model": MODEL, "input": "Count.", "stream": True, "extra_headers": {"Idempotency-Key": "once"}}
    first = await _create_and_read(at, request)
    run = f"run-{first[0].response.id.removeprefix('resp_')}"
    at.service.store.responses.add_pieces(run, 2, ["of the server that died"], replaces_earlier=False)
    async with at.service.store._reader._engine.begin() as connection:
        await connection.execute(update(runs).where(runs.c.id == run).values(status="failed", trace=None))
    again = await _create_and_read(at, request)
    assert text(again) == "three four five"
    stored = await read(await at.openai().responses.retrieve(first[0].response.id, stream=True))
    assert (numbers(stored), text(stored)) == (numbers(again), "three four five")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_has_ended_is_found_at_another_server_at_once(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    monkeypatch.setattr(write_behind, "BATCH_DELAY", 2 * SOON)  # so that only writes with a waiting caller are in time
    one, other = [await serve({"a": "one two"}, store={"url": url}) for _ in range(2)]
    for _ in range(2):
        made = await _create(one, stream=stream)
        found = await other.openai().responses.retrieve(made.id)
        assert (found.status, found.output_text) == ("completed", "one two")
        next_turn: Any = {"model": MODEL, "input": "Count.", "previous_response_id": made.id}
        assert (await other.openai().responses.create(**next_turn)).output_text == "one two"


async def _create(at: At, *, stream: bool) -> Any:
    request: Any = {"model": MODEL, "input": "Count.", "stream": stream}
    if stream:
        return (await _create_and_read(at, request))[-1].response
    return await at.openai().responses.create(**request)
