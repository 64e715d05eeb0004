from __future__ import annotations

from typing import Any

import openai
import pytest

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Message, Request, ToolCall
from rl_conductor_server.auth.key_secrets import hash_key
from server.conftest import ONE_STEP, Serve

MODEL = "conductor-mini"
KEYS = {"red": {"sha256": hash_key("key-of-red")}, "blue": {"sha256": hash_key("key-of-blue")}}
WEATHER: Any = {"type": "function", "name": "weather", "strict": False, "parameters": {"type": "object"}}


def reference(item: str) -> Any:
    return {"type": "item_reference", "id": item}


def shown(request: Request) -> str:
    return " ".join(message.text for message in request.messages)


async def test_references_to_inputs_and_answers_are_replaced_by_the_items(serve: Serve) -> None:
    a = ScriptedModel(["Blue.", "Done.", "Again."])
    client = (await serve({"a": a})).openai()
    first = await client.responses.create(model=MODEL, input="A colour?")
    (asked,) = [item async for item in client.responses.input_items.list(first.id)]
    user: Any = {"role": "user", "content": "Why?"}
    second = await client.responses.create(
        model=MODEL, input=[reference(str(asked.id)), {"id": str(first.output[0].id)}, user]
    )
    assert [message.role for message in a.requests[1].messages][:3] == ["user", "assistant", "user"]
    assert [message.text for message in a.requests[1].messages][:2] == ["A colour?", "Blue."]
    await client.responses.delete(first.id)  # the second response has its own copy
    listed: list[Any] = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.content[0].text for item in listed] == ["A colour?", "Blue.", "Why?"]
    await client.responses.create(model=MODEL, input="And?", previous_response_id=second.id)
    assert "Blue." in shown(a.requests[2])


async def test_a_reference_to_a_tool_call_continues_with_the_worker_that_made_it(serve: Serve) -> None:
    call = ToolCall(id="vendor-1", name="weather", arguments="{}")
    a, planner = ScriptedModel([Message.assistant(tool_calls=[call]), "Dry."]), ScriptedModel([ONE_STEP])
    client = (await serve({"a": a, "b": "unused"}, planner)).openai()
    first = await client.responses.create(model=MODEL, input="The weather?", tools=[WEATHER])
    made: Any = first.output[0]
    (asked,) = [item async for item in client.responses.input_items.list(first.id)]
    result: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "dry"}
    items = [reference(str(asked.id)), reference(made.id), result]
    assert (await client.responses.create(model=MODEL, input=items, tools=[WEATHER])).output_text == "Dry."
    planner.assert_complete()


async def test_items_of_conversations_can_be_referred_to(serve: Serve) -> None:
    a = ScriptedModel("Yes.")
    client = (await serve({"a": a})).openai()
    made = await client.conversations.create(items=[{"role": "user", "content": "I like colours."}])
    (item,) = [item async for item in client.conversations.items.list(made.id)]
    await client.responses.create(model=MODEL, input=[reference(str(item.id)), {"role": "user", "content": "Really?"}])
    assert "I like colours." in shown(a.requests[0])
    with pytest.raises(openai.BadRequestError, match="unsupported type 'item_reference'"):
        await client.conversations.items.create(made.id, items=[reference(str(item.id))])


async def test_items_of_other_keys_and_items_that_are_not_stored_are_not_found(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    kept = await red.responses.create(model=MODEL, input="mine")
    hidden = await red.responses.create(model=MODEL, input="mine", store=False)
    conversation = await red.conversations.create(items=[{"role": "user", "content": "mine"}])
    (item,) = [item async for item in red.conversations.items.list(conversation.id)]
    for client, name in ((blue, kept.output[0].id), (blue, item.id), (red, hidden.output[0].id), (red, "rs_1")):
        with pytest.raises(openai.NotFoundError, match=f"Item with id '{name}' not found") as error:
            await client.responses.create(model=MODEL, input=[reference(str(name))])
        assert (error.value.code, error.value.param) == ("item_not_found", "input")


async def test_references_to_one_long_item_can_not_make_a_request_of_any_size(serve: Serve) -> None:
    client = (await serve(intake={"body_bytes": 4096})).openai()
    made = await client.responses.create(model=MODEL, input="x" * 1_500)
    (item,) = [item async for item in client.responses.input_items.list(made.id)]
    await client.responses.create(model=MODEL, input=[reference(str(item.id))] * 2)
    with pytest.raises(openai.BadRequestError, match="more than 4,096 bytes; send fewer references"):
        await client.responses.create(model=MODEL, input=[reference(str(item.id))] * 3)
    conversation = await client.conversations.create(items=[{"role": "user", "content": "x" * 1_500}])
    (stored,) = [item async for item in client.conversations.items.list(conversation.id)]
    with pytest.raises(openai.BadRequestError, match="more than 4,096 bytes; send fewer references"):
        await client.responses.create(model=MODEL, input=[reference(str(stored.id))] * 3)
