from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, Message, Price, ToolCall, Usage
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import NewRun, store
from rl_conductor_server.store.dialects import DATABASE_NOW
from server.chat_requests import BODY
from server.conftest import ONE_STEP, At, Serve, usage_of_key

RED = {"authorization": "Bearer key-of-red"}
BLUE = {"authorization": "Bearer key-of-blue"}
KEYS: dict[str, Any] = {
    "red": {"sha256": hash_key("key-of-red"), "cache_seconds": 600, "metrics": True},
    "blue": {"sha256": hash_key("key-of-blue"), "cache_seconds": 600},
    "plain": {"sha256": hash_key("key-of-plain")},
}
PRICE = Price(input=Decimal(1_000), output=Decimal(1_000))


def counted(**options: Any) -> ScriptedModel:
    """A worker that says how often it was called."""
    said: list[str] = []

    def reply(_: Any) -> str:
        said.append("")
        return f"answer {len(said)}"

    return ScriptedModel(reply, price=PRICE, **options)


async def caching(serve: Serve, **settings: Any) -> At:
    worker = counted()
    return await serve({"a": worker, "b": worker}, **{"keys": KEYS} | settings)


async def ask(at: At, headers: dict[str, str] = RED, path: str = "/v1/chat/completions", **more: Any) -> Any:
    response = await at.http.post(path, json=BODY | more, headers=headers)
    assert response.status_code == 200, response.text
    return response


def said(response: Any) -> str:
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def test_the_same_request_is_answered_from_the_cache_and_costs_nothing(serve: Serve) -> None:
    at = await caching(serve)
    first, second = await ask(at), await ask(at, metadata={"order": "7"})
    assert [said(first), said(second)] == ["answer 1"] * 2
    assert [reply.headers["x-conductor-cache"] for reply in (first, second)] == ["miss", "hit"]
    assert "idempotent-replayed" not in second.headers
    assert second.json()["usage"]["total_tokens"] == 0
    assert Decimal(second.headers["x-conductor-cost-usd"]) == 0
    run, original = (reply.headers["x-conductor-run"] for reply in (second, first))
    assert run != original
    record = (await at.http.get(f"/v1/runs/{run}", headers=RED)).json()
    assert (record["status"], record["cached_from"], record["labels"]) == ("done", original, {"order": "7"})
    cost = Decimal(first.headers["x-conductor-cost-usd"])
    assert cost > 0
    assert Decimal(record["saved_usd"]) == cost
    assert Decimal(record["usage"]["cost"]) == 0
    metrics = (await at.http.get("/metrics", headers=RED)).text
    assert 'conductor_cache_hits_total{model="conductor-mini"} 1.0' in metrics
    assert f'conductor_cache_saved_usd_total{{model="conductor-mini"}} {float(cost)}' in metrics
    assert (await usage_of_key(at.service.store, "red")).cost == cost


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"model": "conductor-ultra", "conductor": {"limits": {"rounds": 1}}},
        {"messages": [{"role": "user", "content": "Say something!"}]},
        {"conductor": {"policy": {"deny": ["b"]}}},
        {"conductor": {"limits": {"tokens": 100_000}}},
        {"store": False},
    ],
)
async def test_a_request_that_differs_in_anything_is_not_answered_from_the_cache(serve: Serve, change: Any) -> None:
    at = await caching(serve)
    assert [said(await ask(at)), said(await ask(at, **change))] == ["answer 1", "answer 2"]


async def test_a_private_request_is_never_cached(serve: Serve) -> None:
    at = await caching(serve)
    replies = [await ask(at, store=False) for _ in range(2)]
    assert [said(reply) for reply in replies] == ["answer 1", "answer 2"]
    assert "x-conductor-cache" not in replies[1].headers


async def test_no_key_gets_an_answer_of_another_and_only_keys_with_a_cache_have_one(serve: Serve) -> None:
    at = await caching(serve)
    plain = {"authorization": "Bearer key-of-plain"}
    replies = [await ask(at, headers) for headers in (RED, BLUE, plain, plain)]
    assert [said(reply) for reply in replies] == [f"answer {number}" for number in (1, 2, 3, 4)]
    assert ["x-conductor-cache" in reply.headers for reply in replies] == [True, True, False, False]


async def test_a_cached_answer_can_be_streamed_and_a_streamed_one_is_cached(serve: Serve) -> None:
    at = await caching(serve)
    client = at.openai("key-of-red")
    for _ in range(2):
        chunks = [chunk async for chunk in await client.chat.completions.create(**BODY, stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "answer 1"
    streamed = await at.http.post("/v1/chat/completions", json=BODY | {"stream": True}, headers=RED)
    assert streamed.headers["x-conductor-cache"] == "hit"
    assert said(await ask(at)) == "answer 1"


async def test_choices_are_cached_each_by_its_number(serve: Serve) -> None:
    at = await caching(serve)
    replies = [await ask(at, n=2) for _ in range(2)]
    texts = [[choice["message"]["content"] for choice in reply.json()["choices"]] for reply in replies]
    assert texts[0] == texts[1]
    assert sorted(texts[0]) == ["answer 1", "answer 2"]
    assert replies[1].headers["x-conductor-cache"] == "hit"


async def test_an_answer_expires_by_its_own_age_and_not_by_that_of_its_repetitions(serve: Serve) -> None:
    at = await caching(serve)
    first = await ask(at)
    await ask(at)
    row = await at.service.store.get_run(first.headers["x-conductor-run"])
    assert row is not None
    again = NewRun(id="run-x", **row.model_dump(include={"key", "api", "model", "cache_digest"}), created=row.created)
    for age, is_found in ((599, True), (601, False)):
        found = await at.service.store.cache.find(again.model_copy(update={"created": row.created + age}), max_age=600)
        assert (found is not None) is is_found


async def test_cache_control_asks_for_a_new_answer_which_is_cached_then(serve: Serve) -> None:
    at = await caching(serve)
    await ask(at)
    assert said(await ask(at, RED | {"cache-control": "no-cache"})) == "answer 2"
    assert said(await ask(at)) == "answer 2"


async def test_the_newest_answer_is_found_although_the_clock_of_the_database_went_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await caching(serve)
    await ask(at)
    monkeypatch.setattr(store, "select_now", lambda dialect: text(f"SELECT {DATABASE_NOW[dialect]} - 1.0 AS now"))
    await at.service.store.renew_leases([])
    assert said(await ask(at, RED | {"cache-control": "no-cache"})) == "answer 2"
    assert said(await ask(at)) == "answer 2"


async def test_a_deleted_response_is_no_longer_in_the_cache(serve: Serve) -> None:
    at = await caching(serve)
    client = at.openai("key-of-red")
    request: dict[str, Any] = {"model": "conductor-mini", "input": "Say it."}
    first, second = [await client.responses.create(**request) for _ in range(2)]
    assert first.id != second.id
    assert [first.output_text, second.output_text] == ["answer 1"] * 2
    assert (await client.responses.retrieve(second.id)).output_text == "answer 1"
    await client.responses.delete(first.id)
    assert (await client.responses.create(**request)).output_text == "answer 2"


async def test_an_answer_that_was_cut_off_is_not_cached(serve: Serve) -> None:
    usage = Usage(output_tokens=1, calls=1)
    cut_off = Completion(message=Message.assistant("half"), usage=usage, finish_reason="length", model="a")
    replies: Iterator[Completion | str] = iter([cut_off, "whole"])
    worker = ScriptedModel(lambda _: next(replies))
    at = await serve({"a": worker, "b": worker}, keys=KEYS)
    assert [said(await ask(at)) for _ in range(3)] == ["half", "whole", "whole"]


async def test_tool_calls_of_a_cached_answer_can_be_answered(serve: Serve) -> None:
    call = ToolCall(id="vendor-1", name="weather", arguments="{}")
    a, planner = ScriptedModel([Message.assistant(tool_calls=[call]), "Dry."]), ScriptedModel([ONE_STEP])
    at = await serve({"a": a, "b": "unused"}, planner, keys=KEYS)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    _, second = [await ask(at, tools=tools) for _ in range(2)]
    assert second.headers["x-conductor-cache"] == "hit"
    message = second.json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "dry"}
    assert said(await ask(at, tools=tools, messages=[*BODY["messages"], message, result])) == "Dry."
    planner.assert_complete()


async def test_a_key_can_be_created_with_a_cache_at_run_time(serve: Serve) -> None:
    admin = {"authorization": "Bearer key-of-admin"}
    at = await caching(serve, admins={"admin": {"sha256": hash_key("key-of-admin")}})
    made = await at.http.post("/admin/keys", json={"name": "new", "cache_seconds": 60}, headers=admin)
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    assert [said(await ask(at, headers)) for _ in range(2)] == ["answer 1"] * 2
