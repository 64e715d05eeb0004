"""Measures lists, searches, spending and pruning of a store with many runs.

Run with `uv run python benchmarks/store_scale.py --runs 1000000`, and with `--postgres` for a Postgres server of its
own instead of SQLite. The runs are spread over 90 days, 20 API keys, 300 users and sessions of about four turns; half a
percent failed, and one in a hundred is rated. Each has a trace of 4,000 characters and three rows of usage. They are
written by bulk inserts, and days that have ended are added up, as the server does every hour. Times are medians of the
calls that the pages and the command line make, each in a store that was just read, and depend on the machine. No model
is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from server_replicas import Postgres
from sqlalchemy import Connection, Engine, create_engine, text

from rl_conductor_server.store import Search, Store
from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import feedback, runs, users, worker_usage

DAY = 86_400
DAYS, KEYS, USERS, ROUNDS, BATCH = 90, 20, 300, 9, 10_000
WORDS = ("refund", "invoice", "train", "ship", "number", "report", "city", "price", "letter", "code", "weekly", "draft")
RARE, ABSENT = "periwinkle", "no such text"
WORD_INTERVALS = {RARE: 10_000, "quince": 300, "mulberry": 200}
"""Further words, with the number of runs of which one has the word."""
TRACE = '{"calls": "' + "x" * 4_000 + '"}'
LIST_MS, SPENDING_MS = 50, 100
"""Targets."""

Call = Callable[[Store], Awaitable[object]]


def run_rows(start: int, count: int, now: float, generator: random.Random) -> Iterator[dict[str, Any]]:
    """Yields rows of `runs`, the oldest first."""
    for number in range(start, start + count):
        rare_words = [word for word, interval in WORD_INTERVALS.items() if number % interval == 7]
        words = " ".join(generator.choices(WORDS, k=20) + rare_words)
        user = generator.randrange(USERS)
        tokens = generator.randrange(200, 4_000)
        cost = Decimal(tokens) / 10**6
        status = "failed" if number % 200 == 3 else "done"
        yield {
            "id": f"run-{number:016x}",
            "key": f"key-{min(generator.randrange(KEYS), generator.randrange(KEYS))}",
            "choice": 0,
            "digest": "",
            "api": "chat",
            "model": f"conductor-{('mini', 'ultra')[number % 2]}-2026-11-21",
            "status": status,
            "owner": "process-1",
            "heartbeat": now,
            "created": now,
            "seconds": generator.random() * 20,
            "cost": cost,
            "input_tokens": tokens,
            "output_tokens": tokens // 4,
            "calls": 3,
            "unpriced_calls": 0,
            "labels": f'{{"team": "team-{user % 7}", "user": "user-{user}"}}',
            "error": "there is no answer" if status == "failed" else None,
            "trace": TRACE,
            "question": words,
            "answer": f"{words} {words}",
            "session": f"run-{number - number % 4:016x}" if number % 4 and number % 8 < 4 else None,
            "charged_usd": cost,
            "charged_tokens": tokens,
        }


def fill(engine: Engine, count: int, seed: int, console: Console) -> float:
    """Writes the runs; returns the time of the newest one."""
    generator, end = random.Random(seed), time.time()
    with engine.begin() as connection:
        for start in range(0, count, BATCH):
            size = min(BATCH, count - start)
            rows = list(run_rows(start, size, end, generator))
            for offset, row in enumerate(rows):
                row["created"] = row["heartbeat"] = end - DAYS * DAY * (1 - (start + offset) / count)
            connection.execute(runs.insert(), rows)
            connection.execute(worker_usage.insert(), [usage for row in rows for usage in usage_rows(row)])
            connection.execute(users.insert(), [user_row(row) for row in rows])
            if rated := [feedback_row(row) for row in rows if int(row["id"][4:], 16) % 100 == 5]:
                connection.execute(feedback.insert(), rated)
            console.print(f"{start + size:,} runs written", end="\r")
        _complete_indices(connection)
    console.print()
    return end


def _complete_indices(connection: Connection) -> None:
    """Does what Postgres does by itself, and what the server does after each run that it stores in SQLite."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("ANALYZE"))
    index_runs = Statements.for_dialect(connection.dialect.name).index_runs
    while index_runs is not None and connection.execute(index_runs).rowcount:
        pass


def user_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the end user of a run."""
    return {"run": row["id"], "name": json.loads(row["labels"])["user"], "created": row["created"]}


def usage_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the usage of the workers of a run; one of them is called in every thousandth run only."""
    number = int(row["id"][4:], 16)
    workers = ("", f"worker-{number % 5}", "rare" if number % 1_000 == 11 else f"worker-{number % 3 + 5}")
    usage = {"cost": row["cost"] / 3, "input_tokens": 300, "output_tokens": 90, "calls": 1, "unpriced_calls": 0}
    return [{"run": row["id"], "worker": worker, "created": row["created"], **usage} for worker in workers]


def feedback_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a rating of a run."""
    score = 0.0 if int(row["id"][4:], 16) % 500 == 5 else 1.0
    return {"run": row["id"], "author": "a", "key": "user_score", "score": score, "comment": "", "updated": 0.0}


def calls(end: float, count: int) -> dict[str, tuple[Call, int | None]]:
    """Returns the calls to measure, with their targets in milliseconds."""
    session = f"run-{(count // 2) // 8 * 8:016x}"
    month = {"since": end - 30 * DAY, "before": end, "width": DAY}

    def found(**fields: Any) -> tuple[Call, int]:
        return (lambda store: store.list_runs(Search(**fields))), LIST_MS

    def spending(group: Any) -> tuple[Call, int]:
        return (lambda store: store.spending.list_usage(group, **month)), SPENDING_MS

    return {
        "newest 50 runs": found(),
        "of a key": found(key="key-3"),
        "failed ones": found(status="failed"),
        "of a model": found(model="conductor-mini"),
        "of a worker": found(worker="worker-2"),
        "of a worker that few runs call": found(worker="rare"),
        "of a session": found(session=session),
        "of a user": found(user="user-7"),
        "of a user that does not exist": found(user="nobody"),
        "with metadata": found(metadata="team=team-3"),
        "with a frequent word": found(text="refund"),
        "with a word of one run in 200": found(text="mulberry"),
        "with a word of one run in 300": found(text="quince"),
        "with a rare word": found(text=RARE),
        "with a rare word, of a key": found(text=RARE, key="key-3"),
        "with a rare word, of a worker": found(text=RARE, worker="worker-2"),
        "with a text that none has": found(text=ABSENT),
        "rated badly": found(feedback="negative"),
        "not rated": found(feedback="none"),
        "newest 50 sessions": ((lambda store: store.list_sessions()), LIST_MS),
        "newest 50 sessions of a key": ((lambda store: store.list_sessions(key="key-3")), LIST_MS),
        "spending of 30 days by key": spending("key"),
        "spending of 30 days by model": spending("model"),
        "spending of 30 days by worker": spending("worker"),
        "usage of a key in 30 days": (
            (lambda store: store.spending.read_keys(["key-3"], start=month["since"])),
            SPENDING_MS,
        ),
        "names of workers": ((lambda store: store.list_workers()), LIST_MS),
    }


async def measure(store: Store, call: Call) -> float:
    """Returns the median milliseconds of a call, after one that warms the cache."""
    await call(store)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await call(store)
        times.append(time.perf_counter() - started)
        if sum(times) > 20:
            break
    return statistics.median(times) * 1000


async def run(url: str, sync_url: str, count: int, seed: int, console: Console) -> None:
    """Fills a store, measures all calls and prints a table."""
    store = await Store.open(url)
    try:
        engine = create_engine(sync_url)
        end = await asyncio.to_thread(fill, engine, count, seed, console)
        engine.dispose()
        table = Table("what", "time", "target", box=None, pad_edge=False)
        started = time.perf_counter()
        days = await store.spending.sum_days(now=end)
        table.add_row("adding up a day that has ended", f"{(time.perf_counter() - started) / days * 1000:,.0f} ms", "")
        for name, (call, target) in calls(end, count).items():
            milliseconds = await measure(store, call)
            table.add_row(name, f"{milliseconds:,.1f} ms", f"<= {target} ms" if target else "")
        started = time.perf_counter()
        deleted = await store.prune(before=end - (DAYS - 1) * DAY)
        seconds = time.perf_counter() - started
        table.add_row(f"pruning, each 1,000 of {deleted:,} runs", f"{seconds / deleted * 1e6:,.0f} ms", "")
        console.print(table)
    finally:
        await store.aclose()


def main() -> None:
    """Measures with the database that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true", help="measure Postgres instead of SQLite")
    parser.add_argument("--folder", type=Path, help="where the database is written; default: a temporary folder")
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        Path(folder).chmod(0o755)  # the Postgres server has a user of its own
        if args.postgres:
            server = Postgres(Path(folder) / "postgres")
            sync_url = server.url
            url = sync_url.replace("postgresql+psycopg://", "postgres://")
        else:
            server, url = None, f"sqlite:///{folder}/runs.db"
            sync_url = url
        asyncio.run(run(url, sync_url, args.runs, args.seed, console))
        if server is not None:
            server.crash()
    database = "Postgres" if args.postgres else "SQLite"
    console.print(
        f"\n{args.runs:,} runs in {database}; n = up to {ROUNDS} calls, medians; seed {args.seed}; "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; nothing spent",
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
