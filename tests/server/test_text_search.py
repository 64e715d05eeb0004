"""Searches for texts, which an index answers if few runs have them."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Select, func, literal_column, select, text

from core.runs import plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.store import NewRun, Search, Status, Store, statements
from rl_conductor_server.store.runs import search
from rl_conductor_server.store.runs.queries import select_runs

TEXTS = {
    "percent": "100% of them",
    "underscore": "the snake_case name",
    "quote": 'he said "go" and left',
    "star": "a * b / c \\ d",
    "words": "cats AND dogs NEAR(the OR door)",
    "capitals": "Ein GROSSES Übel",
    "letters": "über das Maß, 東京都庁",
    "colon": "question : {answer} ^ - +",
}
SEARCHES = (
    *("100%", "0% ", "_case", "e_c", '"go"', '""', '"', "* b", "*", "/ c", "\\ d", "%", "___", "%%%"),
    *("cats AND dogs", "AND", "NEAR(the", "cats OR", "OR door", "dogs cats", "NOT", "a.b", "question : {", "^ -"),
    *("grosses", "GROSS", "übel", "Übel", "ÜBER", "über", "東京都", "京都", "京都庁", "maß", "MASS", "zz", "", "ab\0c"),
)

HAYSTACK = """
UPDATE runs SET question = question || r.texts FROM (
    SELECT string_agg(md5(n::text), ' needle the ') AS texts FROM generate_series(1, 30000) AS n
) AS r
"""
"""Makes the texts of runs a megabyte long."""


@pytest.fixture(params=[1, 2, 100])
def batch_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's index gets every run at once, every second one later, or none."""
    monkeypatch.setattr(statements, "INDEX_BATCH_SIZE", request.param)


@pytest.fixture
async def store(url: str, batch_size: None) -> AsyncGenerator[Store, None]:
    opened = await Store.open(url)
    yield opened
    await opened.aclose()


def new_run(run: str, question: str, *, key: str = "red", created: float = 1e9, **options: Any) -> NewRun:
    return NewRun(id=run, key=key, api="chat", model="m", created=created, question=question, **options)


async def finish(
    store: Store, run: str, question: str, answer: str, *, status: Status = "done", store_content: bool = True
) -> None:
    """Ends a run that has begun."""
    conductor = Conductor(ScriptedModel(plan((0, "Say it.", []))), pool_of(a=ScriptedModel(answer)))
    trace = await conductor.run(question)
    store.finish_run(run, trace, status, charged=Amount(), store_content=store_content)
    await store.write_queue.flush()


async def add(store: Store, run: str, question: str, answer: str = "yes", **options: Any) -> None:
    """Stores a run that has ended."""
    store.begin_run(new_run(run, question, **options))
    await finish(store, run, question, answer)


async def found(store: Store, wanted: str, **options: Any) -> list[str]:
    """The runs that a search finds, in its order."""
    return [row.id for row in await store.list_runs(Search(text=wanted, **options))]


async def index_rows(store: Store) -> tuple[int, int]:
    """Counts the runs in SQLite's index, and its entries with the trigram `sec`."""

    def count(connection: Connection) -> tuple[int, int]:
        entries = connection.scalar(text("SELECT count(*) FROM run_trigrams WHERE run_trigrams MATCH 'sec'"))
        return connection.scalar(text("SELECT count(*) FROM indexed_runs")) or 0, entries or 0

    return await store.write_queue.execute(count)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def test_a_search_takes_every_character_as_plain_text(store: Store) -> None:
    for run, question in TEXTS.items():
        await add(store, run, question)
    folds_all = (await found(store, "ÜBER")) == ["letters"]  # depends on the locale of Postgres; SQLite: only ASCII
    for wanted in SEARCHES:
        plain = wanted.replace("\0", "")
        fold = str.lower if folds_all else _lower_ascii
        expected = sorted(run for run, question in TEXTS.items() if fold(plain) in fold(question))
        assert await found(store, wanted) == expected, wanted


def _lower_ascii(value: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in value)


async def test_a_search_finds_runs_in_progress_and_both_texts_of_ended_ones(store: Store) -> None:
    store.begin_run(new_run("running", "a needle that runs"))
    await add(store, "asked", "where is the needle?")
    await add(store, "answered", "where?", "in the needle box")
    assert await found(store, "NEEDLE") == ["answered", "asked", "running"]
    assert await found(store, "where?yes") == []
    assert await found(store, "where?in") == []


async def test_a_search_no_longer_finds_the_answer_that_a_repeated_request_replaced(store: Store) -> None:
    run = new_run("run", "Say it.", idempotency_key="order-1", digest="d")
    await store.claim(run)
    await finish(store, "run", "Say it.", "old secret", status="failed")
    assert await found(store, "old secret") == ["run"]
    assert (await store.claim(run.model_copy(update={"id": "again"}))).outcome == "resumed"
    assert await found(store, "old secret") == []
    assert await found(store, "Say it") == ["run"]
    await finish(store, "run", "Say it.", "new words")
    assert await found(store, "old secret") == []
    assert await found(store, "new words") == ["run"]


@pytest.mark.parametrize(
    ("newest_runs", "max_candidates"),
    [(0, -1), (0, 4_000), (2, -1), (2, 4_000)],
    ids=["all", "index", "newest+all", "newest+index"],
)
async def test_the_index_changes_neither_the_order_nor_the_pages_nor_other_filters(
    store: Store, monkeypatch: pytest.MonkeyPatch, newest_runs: int, max_candidates: int
) -> None:
    monkeypatch.setattr(search, "NEWEST_RUNS", newest_runs)
    monkeypatch.setattr(search, "MAX_CANDIDATES", max_candidates)
    times = {"d": 4e9, "a": 2e9, "c": 2e9, "b": 2e9, "e": 1e9}
    for run, created in times.items():
        labels = {"user": "Ann"} if run in "ade" else {}
        await add(store, run, "a needle", created=created, labels=labels, key="blue" if run == "e" else "red")
    await add(store, "other", "hay", created=3e9)
    assert await found(store, "needle") == ["d", "a", "b", "c", "e"]
    first = await store.list_runs(Search(text="needle"), limit=2)
    assert [row.id for row in first] == ["d", "a"]
    assert await found(store, "needle", before=2e9) == ["e"]
    assert await found(store, "needle", since=2e9, user="ANN") == ["d", "a"]
    assert await found(store, "needle", worker="a", key="blue") == ["e"]
    assert await found(store, "needle", worker="b") == []
    assert await found(store, "needle", key="green") == []
    assert await found(store, "needle", status="failed") == []


async def test_a_rare_text_is_found_without_reading_all_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(store, "rare", "a needle")
    await add(store, "other", "hay")
    monkeypatch.setattr(search, "NEWEST_RUNS", 0)
    monkeypatch.setattr(search, "select_runs", select_newest)
    assert await found(store, "needle") == ["rare"]
    assert await found(store, "needles") == []


def select_newest(wanted: Search, *columns: Any, limit: int) -> Select[Any]:
    """Selects like the original, but not among all runs."""
    assert wanted.since is not None
    return select_runs(wanted, *columns, limit=limit)


async def test_a_frequent_text_is_found_in_postgres_among_the_newest_runs(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(postgres)
    for number in range(8):
        await add(store, f"run-{number}", "a needle" if number % 2 else "hay", created=1e9 + number)
    monkeypatch.setattr(search, "NEWEST_RUNS", 4)
    monkeypatch.delattr(search, "select_runs_among")
    monkeypatch.setattr(search, "select_runs", select_newest)
    rows = await store.list_runs(Search(text="needle"), limit=2)
    assert [row.id for row in rows] == ["run-7", "run-5"]
    rows = await store.list_runs(Search(text="needle", before=1e9 + 5), limit=2)
    assert [row.id for row in rows] == ["run-3", "run-1"]
    await store.aclose()


async def test_a_text_is_found_in_postgres_without_its_index(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "NEWEST_RUNS", 0)
    store = await Store.open(postgres)
    await add(store, "run-1", "a needle")
    await store.write_queue.execute(lambda connection: connection.execute(text("DROP INDEX runs_by_text")))
    assert await found(store, "needle") == ["run-1"]
    await store.aclose()


async def test_a_text_is_found_in_postgres_although_its_index_takes_long(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "NEWEST_RUNS", 0)
    store = await Store.open(postgres)
    await add(store, "run-1", "a needle in the hay", "no ho")
    await store.write_queue.execute(lambda connection: connection.execute(text(HAYSTACK)))
    one_millisecond = func.set_config("statement_timeout", "1", literal_column("true"))
    monkeypatch.setattr(search, "_limit_time", select(literal_column("true"), one_millisecond))
    assert await found(store, "needle in the") == ["run-1"]
    await store.aclose()


async def test_a_user_of_postgres_who_may_not_install_modules_can_search(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"user_{secrets.token_hex(8)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        connection.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
    caplog.set_level(logging.INFO)
    store = await Store.open(postgres.replace("postgres@", f"{name}@"))
    assert "has no index of texts" in caplog.text
    await add(store, "run-1", "a needle")
    assert await found(store, "needle") == ["run-1"]
    await store.aclose()


async def test_what_is_not_stored_and_what_was_deleted_is_not_in_the_index(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "INDEX_BATCH_SIZE", 1)
    store = await Store.open(sqlite_url)
    store.begin_run(new_run("private", ""))
    await finish(store, "private", "a secret", "a secret", store_content=False)
    assert await index_rows(store) == (0, 0)
    await add(store, "old", "a secret", created=1.0)
    await add(store, "new", "a secret", created=time.time())
    assert await index_rows(store) == (2, 2)
    assert await store.prune(before=1e9) == 1
    assert await index_rows(store) == (1, 1)
    assert await store.prune(before=time.time() + 9) == 2
    assert await index_rows(store) == (0, 0)
    await store.aclose()


async def test_runs_that_were_stored_without_the_index_are_found_and_indexed_once_it_is_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "INDEX_BATCH_SIZE", 1)
    store = await Store.open(sqlite_url, search_index=False)
    await add(store, "run-1", "a secret")
    assert await index_rows(store) == (0, 0)
    assert await found(store, "secret") == ["run-1"]
    await store.aclose()
    store = await Store.open(sqlite_url)
    for number in (2, 3):
        await add(store, f"run-{number}", "a secret")
    assert await index_rows(store) == (2, 2)
    assert await found(store, "secret") == ["run-1", "run-2", "run-3"]
    await store.aclose()


@pytest.mark.usefixtures("batch_size")
async def test_a_search_finds_the_same_after_the_file_was_compacted(sqlite_url: str) -> None:
    store = await Store.open(sqlite_url)
    for number in range(6):
        await add(store, f"run-{number}", f"needle {number}", created=float(number))
    await store.prune(before=3.5)
    await store.aclose()
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("VACUUM")
    connection.close()
    store = await Store.open(sqlite_url)
    assert [await found(store, f"needle {number}") for number in (3, 4, 5)] == [[], ["run-4"], ["run-5"]]
    await store.aclose()
