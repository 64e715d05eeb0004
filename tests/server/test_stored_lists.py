"""Lists of runs and sessions that indices answer, however many runs there are."""

from __future__ import annotations

from typing import Any

from core.runs import pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor_server.store import NewRun, Search, Store

ONE_STEP = "model_id = [0]\nsubtasks = ['Say it.']\naccess_list = [[]]"


def new_run(run: str, *, created: float, **fields: Any) -> NewRun:
    values = {"id": run, "key": "red", "digest": "", "api": "chat", "model": "m", "created": created, "question": "?"}
    return NewRun.model_validate(values | fields)


def begin(store: Store, run: str, created: float, **fields: Any) -> None:
    store.begin_run(new_run(run, created=created, **fields))


async def trace_of(worker: str) -> Trace:
    """Returns the trace of a run of one step."""
    return await Conductor(ScriptedModel(ONE_STEP), pool_of(**{worker: ScriptedModel("x")})).run("?")


async def test_runs_of_a_worker_are_listed_newest_first_within_the_times(store: Store) -> None:
    traces = {worker: await trace_of(worker) for worker in ("a", "b")}
    for number in range(6):
        begin(store, f"run-{number}", created=100.0 + number)
        store.finish_run(f"run-{number}", traces["ab"[number % 2]], "done", charged=Amount())

    async def found(**fields: object) -> list[str]:
        return [row.id for row in await store.list_runs(Search.model_validate(fields))]

    assert await found(worker="a") == ["run-4", "run-2", "run-0"]
    assert await found(worker="a", since=101, before=104) == ["run-2"]
    assert await found(worker="b", key="red", status="done", text="?") == ["run-5", "run-3", "run-1"]
    assert await found(worker="b", key="blue") == []
    assert await found(since=103.0, before=105.0) == ["run-4", "run-3"]


async def test_runs_of_a_user_are_listed_newest_first_under_each_name_that_the_client_gave(store: Store) -> None:
    labels = {"user": "Ann", "user_email": "ann@example.org", "note": "Bob"}
    for number in range(4):
        begin(store, f"run-{number}", created=100.0 + number, labels=labels if number % 2 else {"user": "Bob"})
    claim = await store.claim(new_run("run-4", created=99.0, labels={"safety_identifier": "ANN"}, idempotency_key="i"))
    assert claim.outcome == "new"

    async def found(**fields: object) -> list[str]:
        return [row.id for row in await store.list_runs(Search.model_validate(fields))]

    assert await found(user="ann") == ["run-3", "run-1", "run-4"]
    assert await found(user="ANN@example.org", since=101.5) == ["run-3"]
    assert await found(user="bob", before=102, key="red") == ["run-0"]
    assert await found(user="an") == []
    assert await found(user="ann", worker="a") == []
    store.finish_run("run-1", await trace_of("a"), "done", charged=Amount())
    assert await found(user="ann", worker="a") == ["run-1"]
    assert await store.prune(before=1_000.0) == 1
    assert await found(user="ann") == ["run-3", "run-4"]


async def test_sessions_are_listed_page_by_page_however_many_runs_they_have(store: Store) -> None:
    for session in range(6):
        for turn in range(20):  # more than are read at a time
            begin(store, f"run-{session}-{turn}", 1_000.0 * session + turn, session=f"s-{session}" if turn else None)
    begin(store, "run-x", 5_500.0)
    first = await store.list_sessions(limit=2)
    assert [(each.session, each.turns, each.first, each.last) for each in first] == [
        ("s-5", 19, 5_001.0, 5_019.0),
        ("s-4", 19, 4_001.0, 4_019.0),
    ]
    second = await store.list_sessions(limit=2, before=first[-1].last)
    assert [each.session for each in second] == ["s-3", "s-2"]
    assert [each.session for each in await store.list_sessions(limit=9)] == [f"s-{n}" for n in range(5, -1, -1)]


async def test_a_session_that_went_on_is_not_on_the_page_of_earlier_ones(store: Store) -> None:
    for number, (session, created) in enumerate((("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", 0.5))):
        begin(store, f"run-{number}", created, session=session)
    assert [each.session for each in await store.list_sessions(before=3.0)] == ["b", "c"]


async def test_the_first_run_of_a_session_belongs_to_it_but_not_to_that_of_another_key(store: Store) -> None:
    begin(store, "run-1", 1.0)
    begin(store, "run-2", 2.0, session="run-1")
    begin(store, "run-3", 3.0, key="blue", session="run-1")
    assert [(each.key, each.turns, each.first) for each in await store.list_sessions()] == [
        ("blue", 1, 3.0),
        ("red", 2, 1.0),
    ]
    assert [each.key for each in await store.list_sessions(key="red")] == ["red"]
