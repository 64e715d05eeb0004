"""Erasing runs before their time is over: single ones, and those of a user."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import Connection, func, select, text, update

from core.runs import SOON, Gated
from rl_conductor.calls.budget import Amount
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Message, ToolCall
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import NewRun, Search, Store, statements
from rl_conductor_server.store.audit import Chain, ErasureRecord, parse_record
from rl_conductor_server.store.erasure import erasure, remnants
from rl_conductor_server.store.tables import metadata
from server.chat_requests import gate
from server.conftest import At, Serve, until, usage_of_key
from server.experiments import ASK as ASK_ASSISTANT
from server.experiments import CENT, conducting, experiment, found_in_metrics, pairs, upstream
from server.test_storage_limits import measured_bytes, stored_bytes
from server.upstream import Vendor

__all__ = ["upstream"]

MODEL = "conductor-mini"
CHAT: Any = "/v1/chat/completions"
SECRET = "€§marker-in-texts"
"""Its first characters are nowhere else, so that a trigram of it is stored as a whole in SQLite's index."""
ADMIN = {"authorization": "Bearer key-of-boss"}
SETTINGS: dict[str, Any] = {
    "keys": {
        "red": {"sha256": hash_key("key-of-red"), "cache_seconds": 600},
        "blue": {"sha256": hash_key("key-of-blue")},
    },
    "admins": {"boss": {"sha256": hash_key("key-of-boss")}},
}
RED = {"authorization": "Bearer key-of-red"}


@pytest.fixture(autouse=True)
def _index_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "INDEX_BATCH_SIZE", 1)


def body(content: str = f"{SECRET}?", *, user: str = f"Ann {SECRET}", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "user": user} | more


async def post(at: At, path: str = CHAT, /, headers: dict[str, str] = RED, **fields: Any) -> httpx.Response:
    """Sends a request, and returns its reply once the run is stored."""
    reply = await at.http.post(path, json=fields, headers=headers)
    assert reply.status_code == 200, reply.text
    await at.service.store.write_queue.flush()
    return reply


def run_of(reply: httpx.Response) -> str:
    return str(reply.headers["x-conductor-run"])


async def erase_user(at: At, user: str = f"Ann {SECRET}", **more: str) -> dict[str, Any]:
    reply = await at.http.delete("/admin/runs", params={"user": user} | more, headers=ADMIN)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


async def tables_with(store: Store, word: str) -> set[str]:
    """The tables with a row that contains a word."""

    def search(connection: Connection) -> set[str]:
        rows = {table.name: connection.execute(select(table)).all() for table in metadata.tables.values()}
        return {name for name, found in rows.items() if word in repr(found)}

    return await store.write_queue.execute(search)


def files_with(folder: Path, word: str) -> list[str]:
    return sorted(path.name for path in folder.glob("runs.db*") if word.encode() in path.read_bytes())


async def records(store: Store) -> list[ErasureRecord]:
    chain = Chain()
    parsed = [parse_record(line) async for line in store.audit_lines(chain)]
    assert chain.broken is None
    return [record for record in parsed if isinstance(record, ErasureRecord)]


async def send_everything(at: At) -> None:
    """Sends requests of all kinds that contain the secret wherever a client may write something."""
    client, labels = at.openai("key-of-red"), {"order": SECRET, "session": SECRET}
    chat = await post(at, **body(metadata=labels))
    await post(at, **body(metadata=labels))  # a hit of the cache
    await post(at, **body(n=2))
    rating = {"score": 1, "comment": SECRET}
    assert (await at.http.post(f"/v1/runs/{run_of(chat)}/feedback", json=rating, headers=RED)).status_code == 200
    await post(at, headers=RED | {"idempotency-key": SECRET.removeprefix("€§")}, **body("Once."))
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    await post(at, **body("Use the tool.", tools=[tool]))
    messages = [{"role": "user", "content": f"Dear {SECRET}."}]
    anthropic: Any = {"model": MODEL, "messages": messages, "max_tokens": 99, "metadata": {"user_id": f"Ann {SECRET}"}}
    await post(at, "/v1/messages", **anthropic)
    await post(at, "/v1/messages", **anthropic, stream=True)
    answers: Any = {"model": MODEL, "safety_identifier": f"Ann {SECRET}", "instructions": SECRET}
    first = await client.responses.create(input=SECRET, **answers)
    await client.responses.create(input=f"More {SECRET}.", previous_response_id=first.id, **answers)
    async for _ in await client.responses.create(input=f"Stream {SECRET}.", stream=True, **answers):
        pass
    conversation = await client.conversations.create(
        items=[{"role": "user", "content": SECRET, "type": "message"}], metadata={"topic": SECRET}
    )
    await client.responses.create(input=f"I am {SECRET}.", conversation=conversation.id, **answers)
    await send_batch(client, 3)


async def send_batch(client: openai.AsyncOpenAI, lines: int) -> Any:
    """Sends a batch in which every other request is that of another user, and waits until it has ended."""
    users = [("Ann", SECRET) if number % 2 == 0 else ("Bob", "nothing") for number in range(lines)]
    requests = [
        {"custom_id": f"{word}-{number}", "method": "POST", "url": CHAT, "body": body(word, user=f"{name} {word}")}
        for number, (name, word) in enumerate(users)
    ]
    content = "\n".join(json.dumps(request, ensure_ascii=False) for request in requests).encode()
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    async with asyncio.timeout(SOON):
        while (batch := await client.batches.retrieve(made.id)).status == "in_progress":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == lines
    return batch


def talkative() -> ScriptedModel:
    """A worker that repeats the question, and calls a tool if there is one."""
    call = ToolCall(id="1", name="look", arguments=json.dumps({"at": SECRET}, ensure_ascii=False))

    def reply(request: Any) -> Any:
        return Message.assistant(tool_calls=[call]) if request.tools else f"You said: {request.messages[-1].text}"

    return ScriptedModel(reply)


async def test_nothing_of_an_erased_user_remains_in_any_table(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    await send_everything(at)
    await post(at, **body("Who else?", user="Bob"))
    store = at.service.store
    before = await usage_of_key(store, "red")
    assert await tables_with(store, "marker-in-texts") == {
        *("runs", "users", "feedback", "responses", "stream_pieces", "conversations", "conversation_items"),
        *("files", "batch_items"),
    }
    result = await erase_user(at)
    assert result == {"object": "list", "deleted": 14, "in_progress": 0}
    assert await tables_with(store, "marker-in-texts") == set()
    assert await usage_of_key(store, "red") == before
    assert [row.question for row in await store.list_runs(Search(user="bob"))] == ["Who else?"]
    assert {record.by for record in await records(store)} == {"@administrator boss"}
    assert len(await records(store)) == 14
    assert await erase_user(at) == {"object": "list", "deleted": 0, "in_progress": 0}


async def test_nothing_of_an_erased_user_remains_in_the_files_of_sqlite(serve: Serve, tmp_path: Path) -> None:
    at = await serve({"a": talkative()}, **SETTINGS)
    await send_everything(at)
    assert files_with(tmp_path, "marker-in-texts") != []
    await erase_user(at)
    assert files_with(tmp_path, "marker-in-texts") == []
    assert (tmp_path / "runs.db-wal").stat().st_size == 0
    assert files_with(tmp_path, "€§m") == ["runs.db"], "a trigram in the index of texts"
    await at.service._prune()
    assert files_with(tmp_path, "€§m") == []
    assert await at.service.store.list_runs(Search(text="€§m")) == []


@pytest.mark.parametrize("path", ["/admin/runs", "/v1/runs"])
async def test_a_run_is_erased_with_its_feedback_and_the_metadata_of_its_client(
    serve: Serve, url: str, path: str
) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    store = at.service.store
    erased, kept = run_of(await post(at, **body())), run_of(await post(at, **body("Something else.", user="Bob")))
    await at.http.post(f"/v1/runs/{erased}/feedback", json={"score": 1, "comment": SECRET}, headers=RED)
    reply = await at.http.delete(f"{path}/{erased}", headers=RED if path == "/v1/runs" else ADMIN)
    assert reply.json() == {"object": "run", "id": erased, "deleted": True}
    assert await tables_with(store, "marker-in-texts") == set()
    row = (await at.http.get(f"/v1/runs/{erased}", headers=RED)).json()
    assert (row["status"], row["question"], row["labels"], row["trace"]) == ("done", "", {}, None)
    assert row["usage"]["calls"]
    assert (await at.http.get(f"/v1/runs/{kept}", headers=RED)).json()["question"] == "Something else."
    assert await stored_bytes(at) == await measured_bytes(at) > 0
    assert [(record.run, record.by) for record in await records(store)] == [
        (erased, "red" if path == "/v1/runs" else "@administrator boss")
    ]


async def test_a_run_that_is_erased_twice_has_one_record(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    run = run_of(await post(at, **body()))
    for _ in range(2):
        assert (await at.http.delete(f"/admin/runs/{run}", headers=ADMIN)).status_code == 200
    assert len(await records(at.service.store)) == 1


async def test_only_administrators_and_the_key_of_a_run_can_erase_it(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    run = run_of(await post(at, **body()))
    blue = {"authorization": "Bearer key-of-blue"}
    for path, headers, status in (
        (f"/v1/runs/{run}", blue, 404),
        ("/v1/runs/run-unknown", RED, 404),
        ("/admin/runs/run-unknown", ADMIN, 404),
        (f"/admin/runs/{run}", RED, 401),
        ("/admin/runs?user=Ann", RED, 401),
    ):
        assert (await at.http.delete(path, headers=headers)).status_code == status, path
    assert await tables_with(at.service.store, "marker-in-texts") != set()


@pytest.mark.parametrize("query", ["", "?user=", "?key=red", "?user=Ann&sinc=2026", "?user=Ann&status=failed"])
async def test_a_request_to_erase_that_does_not_name_a_user_or_has_another_condition_erases_nothing(
    serve: Serve, query: str
) -> None:
    at = await serve(**SETTINGS)
    await post(at, **body(user="Ann"))
    assert (await at.http.delete(f"/admin/runs{query}", headers=ADMIN)).status_code == 400
    assert await tables_with(at.service.store, "marker-in-texts") == {"runs"}


async def test_users_of_the_same_name_of_another_key_are_kept_if_the_key_is_named(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    await post(at, **body("of red", user="42"))
    await post(at, headers={"authorization": "Bearer key-of-blue"}, **body("of blue", user="42"))
    assert (await erase_user(at, "42", key="red"))["deleted"] == 1
    assert [row.question for row in await at.service.store.list_runs(Search(user="42"))] == ["of blue"]


async def test_a_run_in_progress_is_not_erased(serve: Serve) -> None:
    opened, wait = gate()
    at = await serve({"a": Gated("done", wait)}, **SETTINGS)
    asking = asyncio.create_task(post(at, **body()))
    await until(lambda: bool(list(at.service.runs.active_ids)))
    (run,) = at.service.runs.active_ids
    await until_stored(at.service.store, run)
    refused = await at.http.delete(f"/admin/runs/{run}", headers=ADMIN)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "run_in_progress")
    assert await erase_user(at) == {"object": "list", "deleted": 0, "in_progress": 1}
    opened.set()
    await asking
    assert await erase_user(at) == {"object": "list", "deleted": 1, "in_progress": 0}


async def until_stored(store: Store, run: str) -> None:
    async with asyncio.timeout(SOON):
        while await store.get_run(run) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_request_whose_run_was_erased_is_answered_by_a_new_run(serve: Serve) -> None:
    at = await serve({"a": ScriptedModel(["one", "two"])}, **SETTINGS)
    once = RED | {"idempotency-key": "order-7"}
    run = run_of(await post(at, headers=once, **body()))
    await at.http.delete(f"/v1/runs/{run}", headers=RED)
    again = await post(at, headers=once, **body())
    assert run_of(again) != run
    assert again.json()["choices"][0]["message"]["content"] == "two"


async def test_an_erased_answer_is_not_in_the_cache_and_neither_are_its_hits(serve: Serve, url: str) -> None:
    at = await serve({"a": ScriptedModel(["one", "two"])}, store={"url": url}, **SETTINGS)
    first, hit, of_bob = [await post(at, **body(user=user)) for user in ("Ann", "Ann", "Bob")]
    assert {reply.json()["choices"][0]["message"]["content"] for reply in (first, hit, of_bob)} == {"one"}
    await at.http.delete(f"/v1/runs/{run_of(first)}", headers=RED)
    left = [row.id for row in await at.service.store.list_runs() if row.question]
    assert left == [run_of(of_bob)], "another user has asked the same"
    assert (await post(at, **body(user="Ann"))).json()["choices"][0]["message"]["content"] == "two"


async def test_comparisons_of_an_erased_run_are_erased(serve: Serve, upstream: Vendor, url: str) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)}, store={"url": url})
    store = at.service.store
    erased, kept = [run_of(await post(at, **ASK_ASSISTANT)) for _ in range(2)]
    await pairs(at, 2)
    assert await store.erasure.erase_run(erased, by="test") == "erased"
    rows = await store.list_runs(Search())
    assert len(rows) == 8
    assert len([row for row in rows if row.question]) == 4
    assert sorted(pair.reason for pair in await store.experiments.list_pairs()) == ["", "It is right."]
    assert await store.get_trace(kept) is not None


@pytest.mark.parametrize("verdict", [json.dumps({"reason": SECRET, "better": "first"}), "none"])
async def test_a_run_that_is_erased_while_it_is_compared_leaves_no_content(
    serve: Serve, upstream: Vendor, verdict: str
) -> None:
    opened, wait = gate()
    upstream.says["judge"] = lambda _: verdict
    compared = Gated(SECRET, wait, price=CENT)
    at = await serve(**conducting(compared), experiments={"assistant": experiment(upstream)})
    run = run_of(await post(at, **ASK_ASSISTANT | {"messages": body()["messages"]}))
    await asyncio.wait_for(compared.asked.wait(), SOON)
    assert await at.service.store.erasure.erase_run(run, by="test") == "erased"
    opened.set()
    await found_in_metrics(at, 'conductor_shadows_total{experiment="assistant"')
    assert len(await at.service.store.list_runs(Search())) == 4
    assert await tables_with(at.service.store, "marker-in-texts") == set()


async def test_replays_of_an_erased_run_and_of_its_replays_are_erased(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative(), "b": talkative()}, store={"url": url})
    runs = [run_of(await post(at, **body()))]
    for worker in ("b", "a"):
        fields = {"round": "0", "step": "0", "worker": worker, "subtask": "Again."}
        reply = await at.http.post(f"/runs/{runs[-1]}/replay", data=fields, headers={"sec-fetch-site": "same-origin"})
        runs.append(reply.headers["location"].rpartition("/")[2])
        if live := at.service.runs.get(runs[-1]):
            await live.result()
    assert await at.service.store.erasure.erase_run(runs[0], by="test") == "erased"
    assert await tables_with(at.service.store, "marker-in-texts") == set()
    assert {record.run for record in await records(at.service.store)} == set(runs)


async def test_a_run_with_a_replay_in_progress_is_not_erased(serve: Serve) -> None:
    opened, wait = gate()
    at = await serve({"a": talkative(), "b": Gated("done", wait)})
    run = run_of(await post(at, **body()))
    fields = {"round": "0", "step": "0", "worker": "b", "subtask": "Again."}
    replaying = asyncio.create_task(
        at.http.post(f"/runs/{run}/replay", data=fields, headers={"sec-fetch-site": "same-origin"})
    )
    await until(lambda: bool(list(at.service.runs.active_ids)))
    await until_stored(at.service.store, next(iter(at.service.runs.active_ids)))
    assert await at.service.store.erasure.erase_run(run, by="test") == "in progress"
    opened.set()
    await replaying
    await until(lambda: not list(at.service.runs.active_ids))
    assert await at.service.store.erasure.erase_run(run, by="test") == "erased"
    assert await tables_with(at.service.store, "marker-in-texts") == set()


async def test_a_replay_in_progress_leaves_no_content_of_a_response_that_is_deleted(serve: Serve, url: str) -> None:
    opened, wait = gate()
    at = await serve({"a": talkative(), "b": Gated(SECRET, wait)}, store={"url": url})
    response = await post(at, "/v1/responses", model=MODEL, input=SECRET)
    run = run_of(response)
    fields = {"round": "0", "step": "0", "worker": "b", "subtask": "Again."}
    replaying = asyncio.create_task(
        at.http.post(f"/runs/{run}/replay", data=fields, headers={"sec-fetch-site": "same-origin"})
    )
    await until(lambda: bool(list(at.service.runs.active_ids)))
    (replay,) = at.service.runs.active_ids
    await at.http.delete(f"/v1/responses/{response.json()['id']}")
    opened.set()
    await replaying
    await until(lambda: not list(at.service.runs.active_ids))
    assert await at.service.store.get_trace(replay) is None
    assert await tables_with(at.service.store, "marker-in-texts") == set()


async def test_a_hit_of_the_cache_leaves_no_content_if_its_answer_is_erased_meanwhile(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    store = at.service.store
    earlier = run_of(await post(at, **body()))
    trace = await store.get_trace(earlier)
    assert trace is not None
    hit = NewRun(
        id="hit", key="red", api="chat", model=MODEL, created=store.now(), question=SECRET, cached_from=earlier
    )
    hit = hit.model_copy(update={"labels": {"user": SECRET}})
    assert await store.erasure.erase_run(earlier, by="test") == "erased"
    store.begin_run(hit)
    store.finish_run(hit.id, trace, "done", charged=Amount(), source=hit.source)
    row = await store.get_run(hit.id)
    assert row is not None
    assert row.status == "done"
    assert await tables_with(store, "marker-in-texts") == set()


async def test_lines_of_other_users_stay_in_the_files_of_a_batch(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    client = at.openai("key-of-red")
    batch = await send_batch(client, 5)
    assert (await erase_user(at))["deleted"] == 3
    for file, expected in ((batch.input_file_id, 5), (batch.output_file_id, 2)):
        content = (await client.files.content(file)).content
        assert (await client.files.retrieve(file)).bytes == len(content)
        lines = content.decode().split("\n")
        assert len(lines) == expected + (file == batch.output_file_id)
        assert len([line for line in lines if "nothing" in line]) == 2
        assert SECRET not in content.decode()


async def test_a_run_whose_batch_has_no_result_of_it_yet_is_not_erased(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    store = at.service.store
    await send_batch(at.openai("key-of-red"), 1)
    items = metadata.tables["batch_items"]

    async def set_status(status: str) -> None:
        change = update(items).values(status=status, owner="another process", heartbeat=store.now() + 600)
        await store.write_queue.execute(lambda connection: connection.execute(change).close())

    await set_status("running")
    assert await erase_user(at) == {"object": "list", "deleted": 0, "in_progress": 1}
    await set_status("done")
    assert await erase_user(at) == {"object": "list", "deleted": 1, "in_progress": 0}
    assert await tables_with(store, "marker-in-texts") == set()


async def test_a_conversation_with_other_users_stays_without_the_items_of_an_erased_one(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    client = at.openai("key-of-red")
    made = await client.conversations.create(metadata={"topic": "colours"})
    for user in ("Ann", "Bob"):
        await client.responses.create(
            model=MODEL, input=f"I am {user}.", conversation=made.id, safety_identifier=user, metadata={"session": "s"}
        )
    assert (await erase_user(at, "Ann"))["deleted"] == 1
    items: list[Any] = [item async for item in client.conversations.items.list(made.id, order="asc")]
    assert len(items) == 2
    assert "Ann" not in items[0].content[0].text
    assert (await erase_user(at, "Bob"))["deleted"] == 1
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_items_are_erased_although_their_response_was_deleted_before(serve: Serve, url: str) -> None:
    at = await serve({"a": talkative()}, store={"url": url}, **SETTINGS)
    client = at.openai("key-of-red")
    made = await client.conversations.create()
    response = await client.responses.create(
        model=MODEL, input=SECRET, conversation=made.id, safety_identifier="Ann", metadata={"session": "s"}
    )
    await client.responses.delete(response.id)
    assert (await erase_user(at, "Ann"))["deleted"] == 1
    assert await tables_with(at.service.store, "marker-in-texts") == set()


async def test_an_error_that_may_quote_an_erased_request_is_replaced(serve: Serve) -> None:
    def fail(_: Any) -> str:
        raise ValueError(SECRET)

    at = await serve({"a": ScriptedModel(fail)}, **SETTINGS)
    reply = await at.http.post(CHAT, json=body(), headers=RED)
    assert reply.status_code == 502
    await at.service.store.write_queue.flush()
    await erase_user(at)
    (row,) = await at.service.store.list_runs()
    assert row.error == "the run failed; its error was deleted with its content"


async def test_others_can_write_while_many_runs_are_erased(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "ERASE_BATCH_SIZE", 2)
    at = await serve(**SETTINGS)
    for number in range(5):
        await post(at, **body(f"{SECRET} {number}"))
    store, sizes = at.service.store, list[int]()
    execute = store.write_queue.execute

    async def count(write: Any, **options: Any) -> Any:
        result = await execute(write, **options)
        if isinstance(result, erasure._Erasure):
            sizes.append(len(result.erased))
        return result

    monkeypatch.setattr(store.write_queue, "execute", count)
    assert (await erase_user(at))["deleted"] == 5
    assert sizes == [2, 2, 1]


async def test_a_query_that_reads_the_write_ahead_log_is_waited_for(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remnants, "LOG_TIMEOUT", 0.01)
    monkeypatch.setattr(remnants, "LOG_PAUSE", 0.01)
    at = await serve(**SETTINGS)
    await post(at, **body())
    async with at.service.store._reader._engine.connect() as reader:
        await reader.execute(text("BEGIN"))
        await reader.execute(select(func.count()).select_from(metadata.tables["runs"]))
        with caplog.at_level(logging.WARNING):
            await erase_user(at)
        await reader.rollback()
    assert "the write-ahead log of the store has erased texts" in caplog.text
    await erase_user(at)
    await post(at, **body("Something else."))
    await at.http.delete(f"/admin/runs/{(await at.service.store.list_runs())[0].id}", headers=ADMIN)
    assert files_with(tmp_path, "marker-in-texts") == []


async def test_the_page_of_a_run_has_a_button_that_erases_it(serve: Serve) -> None:
    at = await serve()
    run = run_of(await post(at, **body()))
    assert f'action="/runs/{run}/delete"' in (await at.http.get(f"/runs/{run}")).text
    foreign = await at.http.post(f"/runs/{run}/delete", data={"": ""}, headers={"sec-fetch-site": "cross-site"})
    assert foreign.status_code == 403
    reply = await at.http.post(f"/runs/{run}/delete", data={"": ""}, headers={"sec-fetch-site": "same-origin"})
    assert (reply.status_code, reply.headers["location"]) == (303, f"/runs/{run}")
    page = (await at.http.get(f"/runs/{run}")).text
    assert "Only the usage of this run is stored" in page
    assert f'action="/runs/{run}/delete"' not in page
    assert [record.by for record in await records(at.service.store)] == ["@administrator"]
