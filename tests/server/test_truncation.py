from __future__ import annotations

from typing import Any

import openai
import pytest

from rl_conductor.models.scripted import ALL, ScriptedModel
from rl_conductor.types import Message, ToolCall
from rl_conductor_server.runs.truncation import drop_oldest_turns
from server.conftest import Serve

MODEL = "conductor-mini"


async def create(client: openai.AsyncOpenAI, **request: Any) -> Any:
    return await client.responses.with_raw_response.create(**{"model": MODEL, "truncation": "auto"} | request)


def contents(model: ScriptedModel) -> str:
    """Everything that the last call to a worker contained."""
    return " ".join(message.text for message in model.requests[-1].messages)


def test_whole_turns_are_left_out_from_the_oldest_one_on_but_no_system_message() -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    result = Message(role="tool", tool_call_id="1", content="seen")
    system, rule = Message.system("Be brief."), Message.system("Be kind.")
    old, newer, last = Message.user("old"), Message.user("newer"), Message.user("last")
    answer = Message.assistant("answer")
    messages = [system, old, call, result, rule, newer, answer, last, call, result]
    assert drop_oldest_turns(messages, 10) == tuple(messages)
    assert drop_oldest_turns(messages, 9) == (system, rule, newer, answer, last, call, result)
    assert drop_oldest_turns(messages, 6) == (system, rule, last, call, result)
    assert drop_oldest_turns(messages, 1) == (system, rule, last, call, result)


async def test_with_truncation_auto_the_oldest_turns_of_a_chain_with_too_many_messages_are_left_out(
    serve: Serve,
) -> None:
    a = ScriptedModel("ok")
    client = (await serve({"a": a}, intake={"messages": 4})).openai()
    first = (await create(client, input="turn 1")).parse()
    raw = await create(client, input="turn 2", previous_response_id=first.id)
    assert "x-conductor-truncated" not in raw.headers
    second = raw.parse()
    assert (second.truncation, second.previous_response_id) == ("auto", first.id)
    raw = await create(client, input="turn 3", previous_response_id=second.id)
    assert raw.headers["x-conductor-truncated"] == "true"
    assert "turn 1" not in contents(a)
    assert "turn 2" in contents(a)
    with pytest.raises(openai.BadRequestError, match="continues 5 messages; at most 4"):
        await create(client, input="turn 3", previous_response_id=second.id, truncation="disabled")
    with pytest.raises(openai.BadRequestError, match="input has 5 elements"):
        await create(client, input=[{"role": "user", "content": "one request"}] * 5)


async def test_with_truncation_auto_as_much_of_a_long_chain_is_loaded_as_fits(serve: Serve) -> None:
    a = ScriptedModel("ok")
    at = await serve({"a": a}, intake={"body_bytes": 2048})
    client = at.openai()
    first = (await create(client, input="turn 1 " + "x" * 900)).parse()
    second = (await create(client, input="turn 2 " + "y" * 900, previous_response_id=first.id)).parse()
    raw = await create(client, input="turn 3", previous_response_id=second.id)
    assert raw.headers["x-conductor-truncated"] == "true"
    assert "turn 1" not in contents(a)
    assert "turn 2" in contents(a)
    run = await at.service.store.get_run(raw.headers["x-conductor-run"])
    assert run is not None
    assert run.session == f"run-{first.id.removeprefix('resp_')}"  # as without truncation
    with pytest.raises(openai.BadRequestError, match=r'more than 2,048 bytes; .* or truncation: "auto"'):
        await create(client, input="turn 3", previous_response_id=second.id, truncation="disabled")
    await client.responses.delete(first.id)  # truncation replaces no turn that is gone
    with pytest.raises(openai.BadRequestError, match="not found"):
        await create(client, input="turn 3", previous_response_id=second.id)


async def test_with_truncation_auto_as_much_of_a_long_conversation_is_loaded_as_fits(serve: Serve) -> None:
    a = ScriptedModel("ok")
    client = (await serve({"a": a}, intake={"body_bytes": 2048})).openai()
    conversation = await client.conversations.create(items=[{"role": "user", "content": "turn 1 " + "x" * 700}])
    await create(client, input="turn 2 " + "y" * 900, conversation=conversation.id)
    raw = await create(client, input="turn 3", conversation=conversation.id)
    assert raw.headers["x-conductor-truncated"] == "true"
    assert "turn 1" not in contents(a)
    assert "turn 2" in contents(a)
    listed: list[Any] = [item async for item in client.conversations.items.list(conversation.id)]
    assert len(listed) == 5  # nothing is deleted


async def test_with_truncation_auto_a_request_fits_the_longest_context_that_is_known(serve: Serve) -> None:
    long = ScriptedModel("ok", capabilities=ALL.model_copy(update={"context": 1_000}))
    short = ScriptedModel("ok", capabilities=ALL.model_copy(update={"context": 500}))
    client = (await serve({"a": long, "b": short})).openai()
    items = [
        {"role": "user", "content": "turn 1 " + "x " * 1_500},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "turn 2 " + "y " * 600},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "turn 3"},
    ]
    raw = await create(client, input=items, instructions="Be brief.", max_output_tokens=100)
    assert raw.headers["x-conductor-truncated"] == "true"
    assert "turn 1" not in contents(long)
    assert "turn 2" in contents(long)
    assert "Be brief." in contents(long)
    raw = await create(client, input=items, max_output_tokens=800)
    assert "turn 2" not in contents(long)
    unknown = ScriptedModel("ok")
    other = (await serve({"a": unknown, "b": short})).openai()
    raw = await create(other, input=items)
    assert "x-conductor-truncated" not in raw.headers
    assert "turn 1" in contents(unknown)
