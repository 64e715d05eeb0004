"""What clients lose when everything around `rl-conductor serve` fails: the vendor, the connections, the server itself.

Run with `uv run python benchmarks/server_chaos.py`. The vendor answers a share of all calls with a 503, silence, a
reset or half a reply, and the server is killed (SIGKILL) again and again under load and started anew over the same
store. Clients ask until they have an answer, always under the same Idempotency-Key; some hang up now and then, and some
ask again for what they have. Afterwards three books are compared: the vendor's, the server's and the clients'.

- lost: a question without the answer that was written for it, or whose stream ended well with anything else;
- duplicated: two answers to one question, or a call for a step that was on record as finished when the server died;
- wrongly charged: a run whose cost is not that of the replies it holds, a call that the vendor made and no run knows
  (unless it was under way at a kill), or a key whose spending is not the sum of its runs.

Exits with 1 unless all three are 0. No model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any

import httpx
from loopback import USAGE, Made, answers, free_port, running, said, vendor
from rich.console import Console
from rich.table import Table

from rl_conductor.server.keys import new_key
from rl_conductor.trace import Call, PlanRecord, StepResult, Trace

CLIENTS = 12
GIVE_UP = 60.0
"""Seconds after the last kill at which a client that is still without an answer counts its question as lost."""
CALL_COST = Decimal(USAGE["prompt_tokens"]) / 10**6 + Decimal(USAGE["completion_tokens"]) * 2 / 10**6
REPLY = re.compile(r"Reply (\d+): (.+) of question (\d+)\.")

SETTINGS = """
port = {port}
admin_sha256 = "{hashed}"
[planner]
model = "openai:planner"
options = {{ base_url = "{vendor}" }}
price = {{ input = "1", output = "2" }}
{workers}
[profiles.chaos]
released = 2026-11-21
limits = {{ rounds = 1, steps = 3 }}
[keys.chaos]
sha256 = "{hashed}"
usd = "1000"
[store]
url = "sqlite:///{store}"
lease_seconds = 1
"""
WORKER = """
[workers.{name}]
model = "openai:{name}"
options = {{ base_url = "{vendor}" }}
price = {{ input = "1", output = "2" }}
timeout = 2
"""
IN_DOUBT = 0.5
"""Seconds before a kill within which a reply may have come too late to be put on record."""


@dataclass
class Told:
    """What clients were told of a question."""

    texts: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    costs: set[Decimal] = field(default_factory=set)


class Clients:
    """They ask one question after another, each until it is answered."""

    def __init__(self, url: str, key: str, random: Random) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=20, headers={"authorization": f"Bearer {key}"})
        self._random = random
        self._numbers = count(1)
        self._last_call = float("inf")
        self.told: dict[int, Told] = {}
        self.attempts = 0

    def no_more(self) -> None:
        """Ask no further questions, and come to an end with those under way."""
        self._last_call = time.monotonic()

    async def run(self) -> None:
        """Ask until told to stop."""
        async with self._http, asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._ask_on())

    async def _ask_on(self) -> None:
        while self._last_call > time.monotonic():
            number = next(self._numbers)
            self.told[number] = Told()
            for _ in range(1 + (self._random.random() < 0.2)):  # some ask again for what they have
                await self._ask_until_told(number)

    async def _ask_until_told(self, number: int) -> None:
        while time.monotonic() < self._last_call + GIVE_UP:
            patience = 0.3 if self._random.random() < 0.1 else GIVE_UP  # some hang up
            try:
                async with asyncio.timeout(patience):
                    if await self._attempt(number, stream=self._random.random() < 0.5):
                        return
            except (httpx.TransportError, TimeoutError):
                pass
            await asyncio.sleep(self._random.uniform(0.1, 0.5))

    async def _attempt(self, number: int, *, stream: bool) -> bool:
        self.attempts += 1
        question = {"role": "user", "content": f"This is question {number}."}
        body = {"model": "chaos", "messages": [question], "stream": stream}
        named = {"idempotency-key": f"question-{number}"}
        reply = await self._http.post("/v1/chat/completions", json=body, headers=named)
        if reply.status_code != 200:
            return False
        text = streamed(reply.text) if stream else reply.json()["choices"][0]["message"]["content"]
        if text is None:
            return False
        told = self.told[number]
        told.texts.add(text)
        told.runs.add(reply.headers["x-conductor-run"])
        if not stream:
            told.costs.add(Decimal(reply.headers["x-conductor-cost-usd"]))
        return True


def streamed(body: str) -> str | None:
    """The text of a stream that came to its end."""
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]" or any('"error"' in event for event in events):
        return None
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# -------------------------------------------------------------------------------------- the server


@dataclass(frozen=True)
class Kill:
    """The server's death, and what it had put on record by then."""

    at: float
    finished: frozenset[tuple[int, str]]
    """Questions and their parts."""


@dataclass(frozen=True)
class Torment:
    """A server that is killed again and again."""

    url: str
    config: Path
    store: Path
    random: Random

    def kills(self, wanted: int) -> Iterator[Kill]:
        """Start it and kill it under load, so many times."""
        for _ in range(wanted):
            with self.server():
                time.sleep(self.random.uniform(0.3, 1.5))
            yield Kill(time.time(), frozenset(self._on_record()))

    def server(self) -> AbstractContextManager[Popen[bytes]]:
        """It runs while the block does, and dies by SIGKILL."""
        command = [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "serve"]
        env = {**os.environ, "OPENAI_API_KEY": "none"}
        log = self.config.with_suffix(".log")
        return running([*command, "--config", str(self.config)], ready=answers(f"{self.url}/readyz"), env=env, log=log)

    def _on_record(self) -> Iterator[tuple[int, str]]:
        with closing(sqlite3.connect(self.store)) as database:
            for position, body in database.execute("SELECT position, body FROM steps"):
                kept = (PlanRecord if position < 0 else StepResult).model_validate_json(body)
                yield from (reply[1:] for reply in replies(kept.calls))


def replies(calls: Iterable[Call]) -> Iterator[tuple[int, int, str]]:
    """Number, question and part of every reply that calls on record brought."""
    for call in calls:
        if call.outcome == "ok" and call.completion:
            found = REPLY.search(call.completion.text)
            assert found is not None
            yield int(found[1]), int(found[3]), found[2]


# --------------------------------------------------------------------------------------- the books


@dataclass(frozen=True)
class Books:
    """What vendor, server and clients know once it is over."""

    vendor: Sequence[Made]
    kills: Sequence[Kill]
    told: Mapping[int, Told]
    runs: Sequence[dict[str, Any]]
    """As listed to an administrator, each with its `trace`."""
    spent: Decimal
    """On the clients' key, as the server counts."""

    def lost(self) -> Iterator[str]:
        """Questions without the answer that was written for them, and runs without an end."""
        yield from (f"{run['id']} is still {run['status']}" for run in self.runs if not run["trace"])
        whole = {said(call) for call in self.vendor if call.ended == "whole" and call.part != "plan"}
        for number, told in self.told.items():
            if not told.texts:
                yield f"question {number} was never answered"
            for text in told.texts:
                if text not in whole or not text.endswith(f"of question {number}."):
                    yield f"question {number} was answered with {text!r}"

    def duplicated(self) -> Iterator[str]:
        """Questions that were answered twice, and finished steps that were done again."""
        for number, told in self.told.items():
            if len(told.texts) > 1 or len(told.runs) > 1:
                yield f"question {number} has the answers {told.texts} by {told.runs}"
        for kill in self.kills:
            for call in self.vendor:
                if call.began > kill.at and (call.question, call.part) in kill.finished:
                    yield f"{call.part} of question {call.question} was on record, but asked for again"

    def wrongly_charged(self) -> Iterator[str]:
        """Runs, calls and keys whose cost is not what was bought."""
        traces = {trace.id: trace for trace in self._traces()}
        held = Counter(number for trace in traces.values() for number, _, _ in replies(trace.calls()))
        yield from (f"reply {number} is charged {times} times" for number, times in held.items() if times > 1)
        told = {run: one.costs for one in self.told.values() for run in one.runs}
        for run in self.runs:
            cost, trace = Decimal(run["usage"]["cost"]), traces.get(run["id"])
            bought = CALL_COST * len(list(replies(trace.calls()))) if trace else cost
            if {cost, *told.get(run["id"], ())} != {bought}:
                yield f"{run['id']} costs {cost}, its caller was told {told.get(run['id'])}, and it holds {bought}"
        for call in self.forgotten():
            if not any(call.began < kill.at and call.over > kill.at - IN_DOUBT for kill in self.kills):
                yield f"{said(call)!r} was bought, but no run knows it"
        if self.spent != sum(Decimal(run["usage"]["cost"]) for run in self.runs):
            yield f"the key has spent {self.spent}, which is not the sum of its runs"

    def forgotten(self) -> list[Made]:
        """Replies that were bought and are on no record; those that came as the server died may be."""
        known = {number for trace in self._traces() for number, _, _ in replies(trace.calls())}
        return [call for call in self.vendor if call.ended == "whole" and call.number not in known]

    def _traces(self) -> list[Trace]:
        return [Trace.model_validate(run["trace"]) for run in self.runs if run["trace"]]


def read_books(torment: Torment, admin: httpx.Client, log: Path, kills: Sequence[Kill], clients: Clients) -> Books:
    """All of them, once nothing moves any more."""
    with torment.server():
        listed = admin.get("/admin/runs", params={"most": 500}).json()["data"]
        runs = [admin.get(f"/admin/runs/{run['id']}").json() for run in listed]
        spent = Decimal(admin.get("/admin/keys").json()["data"][0]["spent_usd"])
    made = [Made(**json.loads(line)) for line in log.read_text().splitlines()]
    return Books(made, kills, clients.told, runs, spent)


def main() -> None:
    """Torment a server, compare the books, and print what does not agree."""
    told = argparse.ArgumentParser(description="Chaos before, behind and inside of the server.")
    told.add_argument("--kills", type=int, default=10)
    told.add_argument("--faults", type=float, default=0.2, help="share of the vendor's calls that fail")
    told.add_argument("--seed", type=int, default=int(time.time()))
    given = told.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:
        torment(made(Path(folder) / "first"), 0, given.faults, given.seed)  # compiles what a server imports
        books, attempts = torment(made(Path(folder) / "last"), given.kills, given.faults, given.seed)
    found = {"lost": books.lost, "duplicated": books.duplicated, "wrongly charged": books.wrongly_charged}
    wrong = {name: list(check()) for name, check in found.items()}
    show(books, wrong, attempts, given.seed)
    sys.exit(any(wrong.values()))


def made(folder: Path) -> Path:
    """The folder, new."""
    folder.mkdir()
    return folder


def torment(folder: Path, kills: int, faults: float, seed: int) -> tuple[Books, int]:
    """The books of a server that was killed so often, and how often clients had to ask."""
    key, hashed = new_key()
    port, store, log = free_port(), folder / "runs.db", folder / "vendor.jsonl"
    url = f"http://127.0.0.1:{port}"
    with vendor(seconds=0.02, faults=faults, seed=seed, log=log) as upstream:
        config = folder / "conductor.toml"
        workers = "".join(WORKER.format(name=name, vendor=upstream) for name in "abc")
        config.write_text(SETTINGS.format(port=port, hashed=hashed, vendor=upstream, workers=workers, store=store))
        server = Torment(url, config, store, Random(seed))
        clients = Clients(url, key, Random(seed))
        asking = threading.Thread(target=lambda: asyncio.run(clients.run()))
        asking.start()
        try:
            died = list(server.kills(kills))
            with server.server():
                clients.no_more()
                asking.join()
        finally:
            clients.no_more()
            asking.join()
        with httpx.Client(base_url=url, timeout=20, headers={"authorization": f"Bearer {key}"}) as admin:
            return read_books(server, admin, log, died, clients), clients.attempts


def show(books: Books, wrong: Mapping[str, Sequence[str]], attempts: int, seed: int) -> None:
    """Print what happened and what came of it."""
    ended = Counter(call.ended for call in books.vendor)
    happened = {
        "questions": len(books.told),
        "attempts of clients": attempts,
        "kills of the server": len(books.kills),
        "calls to the vendor": len(books.vendor),
        **{f"  {how}": ended[how] for how in sorted(ended)},
        "replies lost with the server": len(books.forgotten()),
    }
    table = Table("what", "count", box=None, pad_edge=False)
    for what, number in happened.items():
        table.add_row(what, str(number))
    table.add_section()
    for what, cases in wrong.items():
        table.add_row(what, str(len(cases)), style="bold red" if cases else "bold green")
    console = Console(width=120)
    console.print(table)
    for case in (case for cases in wrong.values() for case in cases[:20]):
        console.print(f"  {case}", style="red")
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(f"\nseed {seed}; {machine}; no model called, nothing spent", style="dim")


if __name__ == "__main__":
    main()
