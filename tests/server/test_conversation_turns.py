"""One turn of a conversation at a time: what two requests do that belong to the same conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy import text as sql

from core.runs import SOON, Gated
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.store import Store
from rl_conductor_server.store.responses.conversations import Conversation
from server.chat_requests import gate
from server.conftest import Serve, until

MODEL = "conductor-mini"
AGAIN = {"Idempotency-Key": "turn-1"}


def says(text: str) -> dict[str, Any]:
    return {"model": MODEL, "input": text}


@asynccontextmanager
async def turn(a: Gated, asking: Any) -> AsyncGenerator[asyncio.Task[Any], None]:
    """A request in progress, whose worker waits."""
    task = asyncio.create_task(asking)
    await asyncio.wait_for(a.asked.wait(), SOON)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def texts(client: openai.AsyncOpenAI, conversation: str) -> list[str]:
    """The texts of all items, oldest first."""
    items: list[Any] = [item async for item in client.conversations.items.list(conversation, order="asc")]
    return [item.content[0].text for item in items]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_second_request_in_a_conversation_is_rejected_until_the_first_has_ended(
    serve: Serve, streamed: bool
) -> None:
    opened, wait = gate()
    a = Gated("done", wait)
    client, replica = (await serve({"a": a})).openai(), (await serve({"a": "from the replica"})).openai()
    made = await client.conversations.create()
    first = client.responses.create(**says("first"), conversation=made.id, stream=streamed)
    async with turn(a, first) as task:
        for other in (client, replica):
            with pytest.raises(openai.BadRequestError, match="Another process is currently operating") as caught:
                await other.responses.create(**says("second"), conversation=made.id)
            assert (caught.value.code, caught.value.param) == ("conversation_locked", "conversation")
            assert caught.value.response.headers["x-should-retry"] == "true"
            with pytest.raises(openai.BadRequestError, match="Another process"):
                await other.conversations.items.create(made.id, items=[{"role": "user", "content": "between"}])
        opened.set()
        reply = await task
        if streamed:
            assert [event.type async for event in reply][-1] == "response.completed"
        await replica.responses.create(**says("second"), conversation=made.id)
    assert await texts(client, made.id) == ["first", "done", "second", "from the replica"]


async def test_the_openai_client_waits_for_its_turn(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated(["one", "two"], wait)
    at = await serve({"a": a})
    client = at.openai(max_retries=3)
    made = await client.conversations.create()
    async with turn(a, client.responses.create(**says("first"), conversation=made.id)) as first:
        second = asyncio.create_task(client.responses.create(**says("second"), conversation=made.id))
        await until(lambda: b'status="400"' in at.service.metrics.render())
        opened.set()
        await asyncio.gather(first, second)
    assert await texts(client, made.id) == ["first", "one", "second", "two"]


@pytest.mark.parametrize("ends", ["hangs up", "fails", "is rejected"])
async def test_a_turn_without_an_answer_unlocks_its_conversation(serve: Serve, ends: str) -> None:
    opened, wait = gate()
    a = Gated(lambda request: "done" if opened.is_set() else 1 / 0, wait)
    at = await serve({"a": a}, intake={"messages": 3})
    client = at.openai()
    made = await client.conversations.create()
    if ends == "is rejected":
        with pytest.raises(openai.BadRequestError, match="at most 3"):
            await client.responses.create(
                model=MODEL, input=[{"role": "user", "content": str(n)} for n in range(4)], conversation=made.id
            )
        with pytest.raises(openai.NotFoundError, match="no model"):
            await client.responses.create(model="none", input="x", conversation=made.id)
    else:
        gone = "hangs up"
        async with turn(a, client.responses.create(**says("first"), conversation=made.id)) as task:
            if ends == gone:
                task.cancel()
            else:
                a._wait = lambda _: asyncio.sleep(0)
        await until(lambda: not list(at.service.runs.active_ids))
    opened.set()
    await client.responses.create(**says("next"), conversation=made.id)
    assert (await texts(client, made.id))[-2:] == ["next", "done"]


async def test_a_repeated_request_is_the_same_turn(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("done", wait)
    client, replica = (await serve({"a": a})).openai(), (await serve({"a": "from the replica"})).openai()
    made = await client.conversations.create(items=[{"role": "user", "content": "before"}])
    request = {**says("first"), "conversation": made.id, "extra_headers": AGAIN}
    async with turn(a, client.responses.create(**request)) as first:
        others = [asyncio.create_task(other.responses.create(**request)) for other in (client, replica)]
        opened.set()
        replies = await asyncio.gather(first, *others)
    replies.append(await replica.responses.create(**request))
    assert {reply.output_text for reply in replies} == {"done"}
    assert len({reply.id for reply in replies}) == 1
    assert await texts(client, made.id) == ["before", "first", "done"]
    with pytest.raises(openai.UnprocessableEntityError, match="was used for another request"):
        await client.responses.create(**{**request, "conversation": (await client.conversations.create()).id})


async def test_a_repeated_request_leaves_deleted_items_deleted_and_unlocks_the_conversation(
    serve: Serve, url: str
) -> None:
    client = (await serve({"a": ["one", "two", "three"]}, store={"url": url})).openai()
    made = await client.conversations.create()
    request = {**says("first"), "conversation": made.id, "extra_headers": AGAIN}
    await client.responses.create(**request)
    items: list[Any] = [item async for item in client.conversations.items.list(made.id)]
    for item in items:
        await client.conversations.items.delete(item.id, conversation_id=made.id)
    await client.responses.create(**says("second"), conversation=made.id)
    assert (await client.responses.create(**request)).output_text == "one"
    await client.responses.create(**says("third"), conversation=made.id)
    assert await texts(client, made.id) == ["second", "two", "third", "three"]


async def test_a_request_that_is_not_stored_locks_nothing(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated(["one", "two"], wait)
    client = (await serve({"a": a})).openai()
    made = await client.conversations.create()
    async with turn(a, client.responses.create(**says("first"), conversation=made.id, store=False)) as first:
        a.asked.clear()
        async with turn(a, client.responses.create(**says("second"), conversation=made.id)) as second:
            opened.set()
            await asyncio.gather(first, second)
    assert (await texts(client, made.id))[0] == "second"


async def test_a_branch_from_a_response_locks_nothing(serve: Serve) -> None:
    client = (await serve({"a": ScriptedModel(["root", "left", "right"])})).openai()
    root = await client.responses.create(**says("root"))
    branches = await asyncio.gather(
        *(client.responses.create(**says(side), previous_response_id=root.id) for side in ("left", "right"))
    )
    assert {branch.previous_response_id for branch in branches} == {root.id}


async def test_the_lock_of_a_dead_process_expires_and_that_of_a_living_one_is_renewed(url: str) -> None:
    store, other = await Store.open(url, lease=0.2), await Store.open(url, lease=0.2)
    await store.conversations.create(Conversation(id="conv_1", key="red", created=store.now()), ())

    async def lock(at: Store, name: str) -> bool:
        return await at.conversations.lock("conv_1", name, key="red")

    assert await lock(store, "first")
    for _ in range(6):
        await asyncio.sleep(0.05)
        await store.renew_leases(())
    assert not await lock(other, "second")
    store.conversations.unlock("conv_1", "first")
    await store.write_queue.flush()
    assert await lock(other, "second")
    await other.aclose()
    await asyncio.sleep(0.25)
    assert await lock(store, "third")
    await store.aclose()


@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
async def test_the_history_of_a_request_counts_as_memory_of_requests_in_progress(serve: Serve, by: str) -> None:
    opened, wait = gate()
    a = Gated("done", wait)
    client = (await serve({"a": a}, intake={"body_bytes": 4096, "total_body_bytes": 4096})).openai()
    opened.set()
    made = await client.conversations.create(items=[{"role": "user", "content": "x" * 3000}])
    start = await client.responses.create(**says("x" * 3000))
    opened.clear()
    a.asked.clear()
    history: Any = {by: made.id if by == "conversation" else start.id}
    async with turn(a, client.responses.create(**says("first"), **history)) as first:
        with pytest.raises(openai.InternalServerError, match="in progress take 3,") as caught:
            await client.responses.create(**says("second"), previous_response_id=start.id)
        assert caught.value.status_code == 503
        opened.set()
        await first
    await client.responses.create(**says("third"), previous_response_id=start.id)


async def test_messages_with_one_id_of_the_client_are_all_added(serve: Serve) -> None:
    client = (await serve()).openai()
    made = await client.conversations.create()
    for text in ("one", "two"):
        items: Any = [{"type": "message", "role": "user", "content": text, "id": "msg_of_the_client"}]
        await client.responses.create(model=MODEL, input=items, conversation=made.id)
    assert await texts(client, made.id) == ["one", "from a", "two", "from a"]


@pytest.mark.parametrize("background", [False, True])
async def test_an_answer_and_its_turn_of_the_conversation_are_stored_in_one_transaction(
    serve: Serve, background: bool
) -> None:
    client = (await serve()).openai()
    made = await client.conversations.create()
    stored = list[tuple[int, int]]()

    def count(connection: Connection) -> None:
        answers = connection.execute(sql("SELECT count(*) FROM runs WHERE status = 'done'")).scalar_one()
        stored.append((answers, connection.execute(sql("SELECT count(*) FROM conversation_items")).scalar_one()))

    event.listen(Engine, "commit", count)
    try:
        await client.responses.create(
            **says("first"), conversation=made.id, background=background, extra_headers={} if background else AGAIN
        )
        await until(lambda: (1, 2) in stored)
    finally:
        event.remove(Engine, "commit", count)
    assert (1, 0) not in stored, "a process killed after this commit would lose the turn"
