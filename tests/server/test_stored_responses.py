from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import event

from core.runs import SOON, Gated
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Message, Price, ToolCall
from rl_conductor_server.api.openai_responses.ids import run_of_response
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import Store
from server.chat_requests import gate
from server.conftest import ONE_STEP, Serve, until

MODEL = "conductor-mini"
KEYS = {"red": {"sha256": hash_key("key-of-red")}, "blue": {"sha256": hash_key("key-of-blue")}}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
WEATHER: Any = {"type": "function", "name": "weather", "strict": False, "parameters": {"type": "object"}}


async def test_a_conversation_continues_from_a_response_with_the_instructions_of_each_request(serve: Serve) -> None:
    a = ScriptedModel(["Blue.", "Red.", "Green."])
    client = (await serve({"a": a})).openai()
    first = await client.responses.create(model=MODEL, input="A colour?", instructions="Be brief.")
    second = await client.responses.create(
        model=MODEL, input="Another?", previous_response_id=first.id, instructions="Be kind."
    )
    await client.responses.create(model=MODEL, input="A third?", previous_response_id=second.id)
    shown = [[message.text for message in request.messages] for request in a.requests]
    assert all("A colour?" in " ".join(texts) for texts in shown)
    assert [message.role for message in a.requests[2].messages][:4] == ["user", "assistant"] * 2
    assert ["Be brief." in " ".join(texts) for texts in shown] == [True, False, False]
    assert ["Be kind." in " ".join(texts) for texts in shown] == [False, True, False]
    assert [message.text for message in a.requests[2].messages if message.role == "assistant"] == ["Blue.", "Red."]
    assert second.previous_response_id == first.id
    assert second.instructions == "Be kind."


async def test_a_conversation_branches_at_any_response(serve: Serve) -> None:
    a = ScriptedModel(["one", "two", "three"])
    client = (await serve({"a": a})).openai()
    root = await client.responses.create(model=MODEL, input="root")
    for branch in ("left", "right"):
        await client.responses.create(model=MODEL, input=branch, previous_response_id=root.id)
    assert "left" not in " ".join(message.text for message in a.requests[2].messages)
    assert [message.text for message in a.requests[2].messages if message.role == "assistant"] == ["one"]


async def test_results_of_tools_are_enough_to_continue_with_the_worker_that_called_them(serve: Serve) -> None:
    call = ToolCall(id="vendor-1", name="weather", arguments="{}")
    a, planner = ScriptedModel([Message.assistant(tool_calls=[call]), "Dry."]), ScriptedModel([ONE_STEP])
    client = (await serve({"a": a, "b": "unused"}, planner)).openai()
    first = await client.responses.create(model=MODEL, input="The weather?", tools=[WEATHER])
    (made,) = [item for item in first.output if item.type == "function_call"]
    second = await client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": made.call_id, "output": "dry"}],
    )
    assert second.output_text == "Dry."
    planner.assert_complete()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_retrieved_as_it_was_returned(serve: Serve, streamed: bool) -> None:
    client = (await serve()).openai()
    request: dict[str, Any] = {"model": MODEL, "input": "Say it.", "metadata": {"team": "red"}, "temperature": 0.5}
    if streamed:
        *_, last = [event async for event in await client.responses.create(**request, stream=True)]
        made = last.response
    else:
        made = await client.responses.create(**request)
    kept = await client.responses.retrieve(made.id)
    assert kept.to_dict() == {**made.to_dict(), "conductor": kept.to_dict()["conductor"]}
    assert kept.output_text == "from a"


async def test_input_items_are_listed_in_both_orders_and_by_page(serve: Serve) -> None:
    client = (await serve()).openai()
    image: Any = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
    first = await client.responses.create(model=MODEL, input="Hello.")
    items: list[Any] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}, image]},
    ]
    made = await client.responses.create(model=MODEL, input=items, previous_response_id=first.id)
    newest_first: list[Any] = [item async for item in client.responses.input_items.list(made.id)]
    paged: list[Any] = [item async for item in client.responses.input_items.list(made.id, limit=1, order="asc")]
    assert [item.id for item in paged] == [item.id for item in reversed(newest_first)]
    assert [item.content[0].text for item in paged] == ["one", "two", "three"]
    assert [part.type for part in paged[2].content] == ["input_text", "input_image"]
    assert paged[1].content[0].type == "output_text"
    with pytest.raises(openai.BadRequestError, match="no input item 'msg_x'"):
        await client.responses.input_items.list(made.id, after="msg_x")


async def test_a_deleted_response_is_gone_with_the_content_of_its_run(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    first = await client.responses.create(model=MODEL, input="a secret")
    second = await client.responses.create(model=MODEL, input="more", previous_response_id=first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=r"Response with id 'resp_.*' not found"):
        await client.responses.retrieve(first.id)
    run = run_of_response(first.id)
    row = await at.service.store.get_run(run)
    assert row is not None
    assert (row.question, row.answer, await at.service.store.get_trace(run)) == ("", None, None)
    assert row.usage.calls
    for continued in (first.id, second.id):
        with pytest.raises(openai.BadRequestError, match=first.id) as error:
            await client.responses.create(model=MODEL, input="on", previous_response_id=continued)
        assert error.value.code == "previous_response_not_found"
        assert error.value.param == "previous_response_id"


async def test_a_response_with_store_false_can_not_be_retrieved_or_continued(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    kept = await client.responses.create(model=MODEL, input="kept")
    hidden = await client.responses.create(model=MODEL, input="a secret", store=False, previous_response_id=kept.id)
    assert hidden.output_text == "from a"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(hidden.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await client.responses.create(model=MODEL, input="on", previous_response_id=hidden.id)
    with pytest.raises(openai.BadRequestError, match="background can't be combined with store=false"):
        await client.responses.create(model=MODEL, input="on", store=False, background=True)


async def test_a_key_can_not_reach_responses_of_another_key(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    made = await red.responses.create(model=MODEL, input="mine")
    responses: Any = blue.responses
    for reach in (responses.retrieve, responses.delete, responses.cancel, responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await reach(made.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await blue.responses.create(model=MODEL, input="on", previous_response_id=made.id)
    assert (await red.responses.retrieve(made.id)).output_text == "from a"


@pytest.mark.parametrize("unknown", ["resp_0123456789abcdef", "resp_x", "x" * 500])
async def test_an_unknown_response_is_not_found(serve: Serve, unknown: str) -> None:
    client = (await serve()).openai()
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.responses.retrieve(unknown)


async def test_a_conversation_has_the_limits_of_a_request(serve: Serve) -> None:
    client = (await serve(intake={"messages": 4, "body_bytes": 2048})).openai()
    turn = await client.responses.create(model=MODEL, input="one")
    long = await client.responses.create(model=MODEL, input="x" * 1900)
    turn = await client.responses.create(model=MODEL, input="two", previous_response_id=turn.id)
    with pytest.raises(openai.BadRequestError, match="continues 5 messages; at most 4"):
        await client.responses.create(model=MODEL, input="three", previous_response_id=turn.id)
    with pytest.raises(openai.BadRequestError, match="more than 2,048 bytes"):
        await client.responses.create(model=MODEL, input="on", previous_response_id=long.id)


# ---------------------------------------------------------------------------------------- background


async def ended(client: openai.AsyncOpenAI, response: str) -> Any:
    """The response once it is no longer in progress."""
    async with asyncio.timeout(SOON):
        while (reply := await client.responses.retrieve(response)).status == "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return reply


async def test_a_response_in_the_background_is_retrieved_when_it_has_ended(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a})
    client = at.openai()
    made = await client.responses.create(model=MODEL, input="Say it.", background=True)
    assert (made.status, made.background) == ("queued", True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await client.responses.retrieve(made.id)).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="still in progress; wait until it has ended"):
        await client.responses.create(model=MODEL, input="on", previous_response_id=made.id)
    with pytest.raises(openai.BadRequestError, match="cancel it before you delete it"):
        await client.responses.delete(made.id)
    opened.set()
    reply = await ended(at.openai(), made.id)
    assert (reply.status, reply.output_text) == ("completed", "from a")
    assert reply.usage.total_tokens


async def test_a_response_in_the_background_can_be_cancelled(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a})
    client = at.openai()
    made = await client.responses.create(model=MODEL, input="Say it.", background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await client.responses.cancel(made.id)).status == "cancelled"
    assert (await client.responses.cancel(made.id)).status == "cancelled"
    assert (await client.responses.retrieve(made.id)).status == "cancelled"
    opened.set()
    at_once = await client.responses.create(model=MODEL, input="Say it.")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        await client.responses.cancel(at_once.id)


async def test_a_queued_response_in_the_background_is_known_and_can_be_cancelled(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a}, intake={"running": 1})
    client = at.openai()
    first = await client.responses.create(model=MODEL, input="one", background=True)
    queued = await client.responses.create(model=MODEL, input="two", background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await client.responses.retrieve(queued.id)).status == "in_progress"
    assert (await client.responses.cancel(queued.id)).status == "cancelled"
    opened.set()
    assert (await ended(at.openai(), first.id)).status == "completed"
    assert len(a.requests) == 1


async def test_a_response_that_another_server_runs_can_be_cancelled(serve: Serve, tmp_path: Path) -> None:
    _, wait = gate()
    a = Gated("never", wait)
    store = {"url": f"sqlite:///{tmp_path / 'shared.db'}", "lease_seconds": 1.0}
    one = await serve({"a": a}, store=store)
    other = await serve({"a": "unused"}, store=store)
    made = await one.openai().responses.create(model=MODEL, input="Say it.", background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    assert (await other.openai().responses.cancel(made.id)).status == "cancelled"
    assert one.service.runs.get(f"run-{made.id.removeprefix('resp_')}") is None


async def test_a_stream_in_the_background_goes_on_without_its_client(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a})
    stream = await at.openai().responses.create(model=MODEL, input="Say it.", background=True, stream=True)
    event = await anext(aiter(stream))
    assert event.type == "response.created"
    await asyncio.wait_for(a.asked.wait(), SOON)
    await stream.close()
    opened.set()
    assert (await ended(at.openai(), event.response.id)).output_text == "from a"


async def test_a_response_in_the_background_fails_when_its_server_stops(serve: Serve) -> None:
    _, wait = gate()
    a = Gated("never", wait)
    at = await serve({"a": a}, intake={"drain_seconds": 0})
    made = await at.openai().responses.create(model=MODEL, input="Say it.", background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    await at.server.lifespan.shutdown()
    await until(lambda: at.service.runs.get(f"run-{made.id.removeprefix('resp_')}") is None)
    after = await serve({"a": "unused"})
    reply = await after.openai().responses.retrieve(made.id)
    assert reply.status == "failed"
    assert reply.error is not None
    assert reply.error.message == "the server was stopped, or had no room, before there was an answer"


async def test_old_responses_are_deleted_with_their_runs(serve: Serve) -> None:
    at = await serve()
    made = await at.openai().responses.create(model=MODEL, input="one")
    await at.service.store.prune(before=made.created_at + 60)
    assert await at.service.store.responses.get(f"run-{made.id.removeprefix('resp_')}", key="local") is None


async def test_a_response_in_the_background_fails_when_its_server_dies(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("never", wait)
    at = await serve({"a": a})
    made = await at.openai().responses.create(model=MODEL, input="Say it.", background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    survivor = await Store.open(at.service.settings.store.url, lease=0.0)
    assert len(await survivor.end_expired_runs([])) == 1
    await survivor.aclose()
    reply = await at.openai().responses.retrieve(made.id)
    opened.set()  # the server waits for its runs when it stops
    assert reply.status == "failed"
    assert reply.error is not None
    assert reply.error.message == "the server that ran it is gone"


async def test_a_response_in_the_background_is_rejected_while_the_server_has_no_room(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("done", wait)
    client = (await serve({"a": a}, intake={"running": 1, "waiting": 0})).openai()
    first = await client.responses.create(model=MODEL, input="first", background=True)
    await asyncio.wait_for(a.asked.wait(), SOON)
    with pytest.raises(openai.RateLimitError, match="1 runs are in progress and 0 are queued") as caught:
        await client.responses.create(model=MODEL, input="second", background=True)
    assert caught.value.response.headers["x-should-retry"] == "true"
    opened.set()
    async with asyncio.timeout(SOON):
        while (await client.responses.retrieve(first.id)).status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_response_that_lost_its_place_in_the_queue_has_the_code_of_its_rejection_when_polled(
    serve: Serve,
) -> None:
    opened, wait = gate()
    a = Gated("done", wait)
    at = await serve({"a": a}, keys=KEYS, intake={"running": 1, "waiting": 2})
    red, blue = at.openai("key-of-red"), at.openai("key-of-blue")
    made = [await red.responses.create(model=MODEL, input="long", background=True) for _ in range(3)]
    await blue.responses.create(model=MODEL, input="short", background=True)  # its key has nothing in the queue
    rejected = await red.responses.retrieve(made[-1].id)
    assert rejected.status == "failed"
    assert rejected.error is not None
    assert (rejected.error.code, rejected.error.message) == (
        "busy",
        "1 runs are in progress and 1 are queued; try again later",
    )
    opened.set()


async def test_the_question_of_a_request_that_found_no_room_is_not_stored_until_it_is_repeated(
    serve: Serve, url: str
) -> None:
    opened, wait = gate()
    a = Gated("done", wait)
    at = await serve({"a": a}, intake={"running": 1, "waiting": 0}, store={"url": url})
    client, store = at.openai(), at.service.store
    first = asyncio.create_task(client.responses.create(model=MODEL, input="first"))
    await asyncio.wait_for(a.asked.wait(), SOON)
    request: dict[str, Any] = {"model": MODEL, "input": "a secret", "extra_headers": {"Idempotency-Key": "once"}}
    for more in ({}, {"background": True, "extra_headers": {}}):
        with pytest.raises(openai.RateLimitError, match="1 runs are in progress"):
            await client.responses.create(**request | more)
    rejected = [row for row in await store.list_runs() if row.status == "cancelled"]
    assert [row.question for row in rejected] == ["", ""]
    opened.set()
    await first
    made = await client.responses.create(**request)
    row = await store.get_run(run_of_response(made.id))
    assert row is not None
    assert (row.id in {each.id for each in rejected}, row.question) == (True, "a secret")


async def test_a_response_whose_run_the_budget_of_its_key_stops_can_be_deleted(serve: Serve, url: str) -> None:
    at = await serve(keys={"red": KEYS["red"] | {"tokens": 5}}, store={"url": url})
    client, store = at.openai("key-of-red"), at.service.store
    with pytest.raises(openai.RateLimitError, match="5 tokens are left of this key's budget") as caught:
        await client.responses.create(model=MODEL, input="a secret")
    run = caught.value.response.headers["x-conductor-run"]
    made = await client.responses.retrieve(run.replace("run-", "resp_"))
    assert made.status == "failed"
    assert [item.type async for item in client.responses.input_items.list(made.id)] == ["message"]
    await client.responses.delete(made.id)
    row = await store.get_run(run)
    assert row is not None
    assert (row.question, await store.get_trace(run)) == ("", None)


async def test_a_refusal_by_the_budget_of_a_key_has_the_same_code_when_polled(serve: Serve, url: str) -> None:
    price = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))
    pool, planner = {"a": ScriptedModel("said", price=price)}, ScriptedModel(ONE_STEP, price=price)
    at = await serve(pool, planner, keys={"red": KEYS["red"] | {"usd": "0.01"}}, store={"url": url})
    client = at.openai("key-of-red")
    body = {"model": MODEL, "input": "Say it.", "background": True}
    for says in (r"$0.00 is left of this key's budget", "is used up"):  # for the worker, and for the next run
        reply = await at.http.post("/v1/responses", json=body, headers={"authorization": "Bearer key-of-red"})
        made = reply.headers["x-conductor-run"].replace("run-", "resp_")
        polled = await ended(client, made)
        assert (polled.status, polled.error.code) == ("failed", "insufficient_quota")
        assert says in polled.error.message
        with pytest.raises(openai.APIError) as caught:
            [event async for event in await client.responses.retrieve(made, stream=True)]
        assert (caught.value.code, caught.value.message) == (polled.error.code, polled.error.message)


async def test_a_request_whose_response_was_deleted_is_answered_again(serve: Serve) -> None:
    client = (await serve({"a": ScriptedModel(["one", "two"])})).openai()
    request: dict[str, Any] = {"model": MODEL, "input": "Say it.", "extra_headers": {"Idempotency-Key": "once"}}
    made = await client.responses.create(**request)
    await client.responses.delete(made.id)
    assert (await client.responses.create(**request)).output_text == "two"
    assert (await client.responses.create(**request)).output_text == "two"
    assert (await client.responses.retrieve(made.id)).output_text == "two"


async def test_a_response_that_is_deleted_while_a_retry_reads_its_answer_stays_deleted(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await serve(store={"url": url})
    client, store = at.openai(), at.service.store
    request: dict[str, Any] = {"model": MODEL, "input": "a secret", "extra_headers": {"Idempotency-Key": "once"}}
    made = await client.responses.create(**request)
    read = store.get_trace

    async def read_and_delete(run: str, *, key: str) -> Trace | None:
        trace = await read(run, key=key)
        await client.responses.delete(made.id)
        return trace

    monkeypatch.setattr(store, "get_trace", read_and_delete)
    assert (await client.responses.create(**request)).id == made.id
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list(made.id)


async def test_the_tokens_of_a_request_are_counted_with_the_turns_before_it(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    client = at.openai("key-of-red")

    async def count(text: str, **more: Any) -> int:
        return (await client.responses.input_tokens.count(model=MODEL, input=text, **more)).input_tokens

    short = await count("Hello.")
    assert short < await count("Hello. " * 100, instructions="Be brief.")
    made = await client.responses.create(model=MODEL, input="Say it. " * 200)
    conversation = await client.conversations.create(items=[{"role": "user", "content": "Say it. " * 200}])
    assert await count("Hello.", previous_response_id=made.id) > short + 200
    assert await count("Hello.", conversation=conversation.id) > short + 200
    with pytest.raises(openai.NotFoundError):
        await at.openai("key-of-blue").responses.input_tokens.count(
            model=MODEL, input="x", conversation=conversation.id
        )
    with pytest.raises(openai.NotFoundError, match="no model 'x'"):
        await client.responses.input_tokens.count(model="x", input="x")


async def test_polling_a_response_that_another_server_runs_does_not_read_its_input(serve: Serve, url: str) -> None:
    opened, wait = gate()
    one, other = await serve({"a": Gated("from a", wait)}, store={"url": url}), await serve(store={"url": url})
    made = await one.openai().responses.create(model=MODEL, input="x" * 100_000, background=True)
    statements = list[str]()

    def record(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(other.service.store._reader._engine.sync_engine, "before_cursor_execute", record)
    assert (await other.openai().responses.retrieve(made.id)).status == "in_progress"
    assert "responses.parameters" in " ".join(statements)
    assert not [statement for statement in statements if "responses.input" in statement]
    opened.set()
