"""Tests of the Responses API's conversations, with OpenAI's own client."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Message, ToolCall
from rl_conductor_server.auth.key_secrets import hash_key
from server.conftest import ONE_STEP, Serve

MODEL = "conductor-mini"
KEYS = {"red": {"sha256": hash_key("key-of-red")}, "blue": {"sha256": hash_key("key-of-blue")}}
WEATHER: Any = {"type": "function", "name": "weather", "strict": False, "parameters": {"type": "object"}}


async def texts(client: openai.AsyncOpenAI, conversation: str) -> list[str]:
    """The texts of all items, oldest first."""
    items: list[Any] = [item async for item in client.conversations.items.list(conversation, order="asc", limit=3)]
    return [item.content[0].text for item in items]


async def test_responses_of_a_conversation_see_and_extend_it(serve: Serve) -> None:
    a = ScriptedModel(["Blue.", "Red."])
    client = (await serve({"a": a})).openai()
    made = await client.conversations.create(items=[{"role": "user", "content": "I like colours."}])
    first = await client.responses.create(
        model=MODEL, input="A colour?", conversation=made.id, instructions="Be brief."
    )
    assert first.conversation is not None
    assert first.conversation.id == made.id
    *_, last = [
        event
        async for event in await client.responses.create(
            model=MODEL, input="Another?", conversation={"id": made.id}, stream=True
        )
    ]
    assert last.type == "response.completed"
    shown = [message.text for message in a.requests[1].messages]
    assert shown[:4] == ["I like colours.", "A colour?", "Blue.", shown[3]]
    assert "Another?" in shown[3]
    assert "Be brief." not in " ".join(shown)
    assert await texts(client, made.id) == ["I like colours.", "A colour?", "Blue.", "Another?", "Red."]
    assert (await client.responses.retrieve(first.id)).conversation == first.conversation


async def test_a_conversation_is_created_retrieved_updated_and_deleted(serve: Serve) -> None:
    client = (await serve()).openai()
    made = await client.conversations.create(metadata={"team": "red"})
    assert (made.object, made.metadata) == ("conversation", {"team": "red"})
    assert abs(made.created_at - time.time()) < 60
    assert await client.conversations.retrieve(made.id) == made
    updated = await client.conversations.update(made.id, metadata={"team": "blue"})
    assert updated.metadata == {"team": "blue"}
    assert await client.conversations.retrieve(made.id) == updated
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{made.id}' not found"):
        await client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.responses.create(model=MODEL, input="on", conversation=made.id)


async def test_items_are_added_listed_retrieved_and_deleted(serve: Serve) -> None:
    client = (await serve()).openai()
    made = await client.conversations.create()
    added: Any = await client.conversations.items.create(
        made.id, items=[{"role": "user", "content": str(number)} for number in range(5)]
    )
    assert [item.content[0].text for item in added.data] == ["0", "1", "2", "3", "4"]
    newest_first: list[Any] = [item async for item in client.conversations.items.list(made.id, limit=2)]
    assert [item.id for item in newest_first] == [item.id for item in reversed(added.data)]
    second = added.data[1]
    assert (await client.conversations.items.retrieve(second.id, conversation_id=made.id)).id == second.id
    left = await client.conversations.items.delete(second.id, conversation_id=made.id)
    assert left.id == made.id
    assert await texts(client, made.id) == ["0", "2", "3", "4"]
    with pytest.raises(openai.NotFoundError, match="Item with id"):
        await client.conversations.items.retrieve(second.id, conversation_id=made.id)
    with pytest.raises(openai.BadRequestError, match="has no item 'x'"):
        await client.conversations.items.list(made.id, after="x")


async def test_a_page_of_long_items_is_short_and_has_more(serve: Serve) -> None:
    client = (await serve()).openai()
    long: Any = {"role": "user", "content": "x" * 400_000}
    made = await client.conversations.create(items=[long] * 5)
    page = await client.conversations.items.list(made.id)
    assert (len(page.data), page.has_more) == (2, True)
    items = [item async for item in client.conversations.items.list(made.id)]
    assert len({item.id for item in items}) == 5


async def test_a_tool_call_in_a_conversation_is_continued_by_its_result(serve: Serve) -> None:
    call = ToolCall(id="vendor-1", name="weather", arguments="{}")
    a, planner = ScriptedModel([Message.assistant(tool_calls=[call]), "Dry."]), ScriptedModel([ONE_STEP])
    client = (await serve({"a": a, "b": "unused"}, planner)).openai()
    made = await client.conversations.create()
    first = await client.responses.create(model=MODEL, input="The weather?", tools=[WEATHER], conversation=made.id)
    (made_call,) = [item for item in first.output if item.type == "function_call"]
    second = await client.responses.create(
        model=MODEL,
        conversation=made.id,
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": made_call.call_id, "output": "dry"}],
    )
    assert second.output_text == "Dry."
    planner.assert_complete()
    kinds = [item.type async for item in client.conversations.items.list(made.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


async def test_a_response_with_store_false_adds_nothing_to_its_conversation(serve: Serve) -> None:
    a = ScriptedModel(["one", "two"])
    client = (await serve({"a": a})).openai()
    made = await client.conversations.create(items=[{"role": "user", "content": "known"}])
    await client.responses.create(model=MODEL, input="a secret", conversation=made.id, store=False)
    assert "known" in " ".join(message.text for message in a.requests[0].messages)
    assert await texts(client, made.id) == ["known"]


async def test_a_key_can_not_reach_conversations_of_another_key(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    made = await red.conversations.create(items=[{"role": "user", "content": "mine"}])
    (item,) = (await red.conversations.items.list(made.id)).data
    assert item.id is not None
    for reach in (
        blue.conversations.retrieve(made.id),
        blue.conversations.update(made.id, metadata={}),
        blue.conversations.delete(made.id),
        blue.conversations.items.create(made.id, items=[{"role": "user", "content": "yours"}]),
        blue.conversations.items.retrieve(item.id, conversation_id=made.id),
        blue.conversations.items.delete(item.id, conversation_id=made.id),
        blue.responses.create(model=MODEL, input="on", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await reach
    with pytest.raises(openai.NotFoundError):
        await blue.conversations.items.list(made.id)
    assert await texts(red, made.id) == ["mine"]


async def test_a_conversation_deleted_during_a_run_stays_deleted(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    made = await client.conversations.create()
    await client.conversations.delete(made.id)
    items = [{"id": "msg_1", "type": "message"}]
    store = at.service.store
    await store.write_queue.execute(
        lambda connection: store.conversations.append(connection, made.id, items, key="local")
    )
    assert await at.service.store.conversations.get(made.id, key="local") is None
    assert await at.service.store.conversations.count_items(made.id, key="local") == 0


async def test_old_conversations_and_items_are_deleted(serve: Serve) -> None:
    at = await serve()
    client, store = at.openai(), at.service.store
    made = await client.conversations.create(items=[{"role": "user", "content": "old"}])
    now = time.time()
    await store.prune(before=now - 60)
    assert await texts(client, made.id) == ["old"]
    await store.prune(before=now + 60)
    assert await store.conversations.get(made.id, key="local") is None


async def test_a_server_with_a_wrong_clock_does_not_delete_new_items(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await serve()
    client, store = at.openai(), at.service.store
    monkeypatch.setattr(time, "time", lambda true_time=time.time: true_time() - 400 * 86_400)
    made = await client.conversations.create(items=[{"role": "user", "content": "new"}])
    await client.conversations.items.create(made.id, items=[{"role": "user", "content": "newer"}])
    await store.prune(before=store.now() - 60)
    assert await texts(client, made.id) == ["new", "newer"]


async def test_a_conversation_has_the_limits_of_a_request(serve: Serve) -> None:
    client = (await serve(intake={"messages": 4, "body_bytes": 2048})).openai()
    items: list[Any] = [{"role": "user", "content": str(number)} for number in range(4)]
    made = await client.conversations.create(items=items)
    with pytest.raises(
        openai.BadRequestError,
        match='continues 5 messages; at most 4 are allowed; send a part of it as input, or truncation: "auto"',
    ):
        await client.responses.create(model=MODEL, input="on", conversation=made.id)
    with pytest.raises(openai.BadRequestError, match="at most 4 items"):
        await client.conversations.items.create(made.id, items=items[:1])
    long = await client.conversations.create(items=[{"role": "user", "content": "x" * 1900}])
    await client.conversations.items.create(long.id, items=[{"role": "user", "content": "x" * 1900}])
    with pytest.raises(openai.BadRequestError, match="more than 2,048 bytes"):
        await client.responses.create(model=MODEL, input="on", conversation=long.id)


@pytest.mark.parametrize("by", ["conversation", "previous_response_id", "item_reference"])
async def test_stored_content_counts_for_the_limit_of_content_parts(serve: Serve, by: str) -> None:
    a = ScriptedModel("ok")
    client = (await serve({"a": a}, intake={"parts": 5})).openai()
    long: Any = {"role": "user", "content": [{"type": "input_text", "text": "long ago"}] * 4}
    made = await client.conversations.create(items=[long])
    first = await client.responses.create(model=MODEL, input=[long])
    (item,) = (await client.conversations.items.list(made.id)).data
    history: Any = {by: made.id if by == "conversation" else first.id}
    question: Any = [{"role": "user", "content": [{"type": "input_text", "text": "on"}] * 2}]
    if by == "item_reference":
        history, question = {}, [{"type": "item_reference", "id": item.id}, *question]
    remedy = "refer to fewer items" if by == "item_reference" else 'send a part of it as input, or truncation: "auto"'
    with pytest.raises(openai.BadRequestError, match=f"more than 5 content parts; {remedy}"):
        await client.responses.create(model=MODEL, input=question, **history)
    if by != "item_reference":
        await client.responses.create(model=MODEL, input=question, truncation="auto", **history)
        assert "long ago" not in a.requests[-1].messages[0].text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"items": [{"role": "user", "content": "x"}] * 21}, "at most 20"),
        ({"items": [{"type": "hologram_call"}]}, "hologram_call"),
        ({"metadata": {"x": "y" * 513}}, "must have at most 512 characters"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata may have at most 16 entries"),
    ],
)
async def test_an_invalid_conversation_is_rejected(serve: Serve, body: dict[str, Any], says: str) -> None:
    client = (await serve()).openai()
    with pytest.raises(openai.BadRequestError, match=says):
        await client.conversations.create(**body)


async def test_a_conversation_and_a_previous_response_exclude_each_other(serve: Serve) -> None:
    client = (await serve()).openai()
    made = await client.conversations.create()
    with pytest.raises(openai.BadRequestError, match="can't be combined with previous_response_id") as refused:
        await client.responses.create(model=MODEL, input="on", conversation=made.id, previous_response_id="resp_x")
    assert refused.value.param == "conversation"


async def test_the_runs_of_a_conversation_are_a_session(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    made = await client.conversations.create()
    for text in ("one", "two"):
        await client.responses.create(model=MODEL, input=text, conversation=made.id)
    (session,) = await at.service.store.list_sessions()
    assert (session.session, session.turns) == (made.id, 2)
