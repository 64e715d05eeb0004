"""Tests `rl-conductor serve` while everything around it fails: the vendor, the connections, the server itself.

Run with `uv run python benchmarks/server_chaos.py`; it takes about four minutes. It runs three tests, each with a new
store, and uses loopback addresses only.

Failures: the vendor answers a share of all calls with a 503, silence, a reset or half a reply, and the server is killed
(SIGKILL) repeatedly under load and restarted with the same store. Most clients repeat each question with the same
Idempotency-Key until it is answered; some of them disconnect early, and some repeat a question that was answered. The
other clients ask once, without such a key.

Full load: 16 clients without an Idempotency-Key, and one with a key, ask as fast as the server can answer. After some
seconds the server is killed and restarted.

Replicas: three servers with wrong clocks share a Postgres and four tenants, two of them with a small budget and one
hostile, while servers and Postgres are killed in turn; see `server_replicas.py`. `--only replicas` runs only this test.

Afterwards the records of the vendor, the server and the clients are compared:

- lost: a question without its own answer, or whose stream ended normally with another text; an answer whose run is not
  stored; a run that is still running after all its servers are gone;
- duplicated: two answers to one question, or a call for a step that was stored as finished before the kill;
- wrongly charged: a run whose cost differs from that of its replies, a call to the vendor that no run contains, or a
  key whose spending is not the sum of its runs;
- unaudited: an ended run without an audit record, or a broken hash chain;
- refused: a request that the saturated server did not answer;
- over the cap: the vendor billed a key more than its budget;
- stuck: a run that never ended;
- content kept: text of a request with `store: false` in the store.

Answers and calls within a second before a kill may be missing from the store. Exits with 1 unless all counts are 0. No
model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from random import Random
from subprocess import Popen

import httpx
from loopback import VendorCall, free_port, processor_seconds, responds, run_program, vendor
from rich.console import Console
from rich.table import Table
from server_records import Answers, Kill, Records, read_audit, read_runs, read_steps, replies, stream_text
from server_replicas import break_replicas

from rl_conductor_server.auth.key_secrets import generate_key

KEYED_CLIENTS, KEYLESS_CLIENTS = 9, 3
"""Numbers of clients of the test with failures with and without an Idempotency-Key."""
SATURATING_CLIENTS = 16
"""Number of clients without an Idempotency-Key that saturate a server."""
GIVE_UP_SECONDS = 60.0
"""Seconds after the last kill until a question without an answer counts as lost."""
LEASE_SECONDS = 1.0
"""Seconds without a renewal of its lease after which a server counts as dead."""

KEY = "chaos"
SETTINGS = """
port = {port}
[planner]
model = "openai:planner"
options = {{ base_url = "{vendor}" }}
price = {{ input = "1", output = "2" }}
{workers}
[models.chaos]
released = 2026-11-21
limits = {{ rounds = 1, steps = 3 }}
[models.single]
released = 2026-11-21
policy = {{ single = "a" }}
[admins.chaos]
sha256 = "{hashed}"
[keys.chaos]
sha256 = "{hashed}"
usd = "1000"
[store]
url = "{store}"
lease_seconds = {lease}
"""
WORKER = """
[workers.{name}]
model = "openai:{name}"
options = {{ base_url = "{vendor}" }}
price = {{ input = "1", output = "2" }}
timeout = 2
"""


class Clients:
    """Clients that ask one question after another."""

    def __init__(self, url: str, key: str, random: Random, *, model: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=20, headers={"authorization": f"Bearer {key}"})
        self._random = random
        self._model = model
        self._numbers = count(1)
        self._last_call = float("inf")
        self.answers: dict[int, Answers] = {}
        self.attempts = 0

    def stop(self) -> None:
        """Stops asking new questions; those in progress are finished."""
        self._last_call = time.monotonic()

    async def ask_until_stopped(self) -> None:
        """Asks until `stop` is called, also while the server is down."""
        async with self._http, asyncio.TaskGroup() as group:
            for _ in range(KEYED_CLIENTS):
                group.create_task(self._ask_until_answered())
            for _ in range(KEYLESS_CLIENTS):
                group.create_task(self._ask_once())

    async def saturate(self, seconds: float) -> None:
        """Keeps the server saturated for `seconds`, then disconnects."""
        async with self._http:
            has_keys = [False] * SATURATING_CLIENTS + [True]
            tasks = [asyncio.create_task(self._ask_continuously(has_key=has_key)) for has_key in has_keys]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _next(self, *, has_key: bool) -> int:
        number = next(self._numbers)
        self.answers[number] = Answers(has_key)
        return number

    async def _ask_until_answered(self) -> None:
        while self._last_call > time.monotonic():
            number = self._next(has_key=True)
            for _ in range(1 + (self._random.random() < 0.2)):  # some repeat a question that was answered
                await self._repeat(number)

    async def _repeat(self, number: int) -> None:
        while time.monotonic() < self._last_call + GIVE_UP_SECONDS:
            patience = 0.3 if self._random.random() < 0.1 else GIVE_UP_SECONDS  # some disconnect early
            try:
                async with asyncio.timeout(patience):
                    if await self._attempt(number, stream=self._random.random() < 0.5) == 200:
                        return
            except (httpx.TransportError, TimeoutError):
                pass
            await asyncio.sleep(self._random.uniform(0.1, 0.5))

    async def _ask_once(self) -> None:
        while self._last_call > time.monotonic():
            try:
                await self._attempt(self._next(has_key=False), stream=self._random.random() < 0.5)
            except httpx.TransportError:
                await asyncio.sleep(self._random.uniform(0.1, 0.5))

    async def _ask_continuously(self, *, has_key: bool) -> None:
        while True:
            number = self._next(has_key=has_key)
            try:
                status = await self._attempt(number, stream=False)
            except asyncio.CancelledError:
                del self.answers[number]  # it received nothing
                raise
            if status != 200:
                self.answers[number].refused.append(status)

    async def _attempt(self, number: int, *, stream: bool) -> int:
        """Sends a question, records the answer, and returns the status; 0 for an incomplete stream."""
        self.attempts += 1
        answers = self.answers[number]
        question = {"role": "user", "content": f"This is question {number}."}
        body = {"model": self._model, "messages": [question], "stream": stream}
        headers = {"idempotency-key": f"question-{number}"} if answers.has_key else {}
        reply = await self._http.post("/v1/chat/completions", json=body, headers=headers)
        if reply.status_code != 200:
            return reply.status_code
        text = stream_text(reply.text) if stream else reply.json()["choices"][0]["message"]["content"]
        if text is None:
            return 0
        answers.texts.add(text)
        answers.runs.setdefault(reply.headers["x-conductor-run"], time.time())
        if not stream:
            answers.costs.add(Decimal(reply.headers["x-conductor-cost-usd"]))
        return 200


# -------------------------------------------------------------------------------------- the server


@dataclass(frozen=True)
class Server:
    """A server that can be killed, with its own fake vendor."""

    url: str
    key: str
    config: Path
    store: str
    """URL of its database."""
    vendor_log: Path

    def kill(self, seconds: float) -> Kill:
        """Starts the server and kills it after `seconds`."""
        with self.running():
            time.sleep(seconds)
        return self.last_kill()

    def last_kill(self) -> Kill:
        """Returns the kill that just happened, with the steps that are stored."""
        calls = read_steps(self.store).values()
        return Kill(time.time(), frozenset(reply[1:] for step_calls in calls for reply in replies(step_calls)))

    def running(self) -> AbstractContextManager[Popen[bytes]]:
        """Runs the server inside the `with` block, then kills it with SIGKILL."""
        command = [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "serve"]
        env = {**os.environ, "OPENAI_API_KEY": "none"}
        log = self.config.with_suffix(".log")
        return run_program(
            [*command, "--config", str(self.config)], ready=responds(f"{self.url}/readyz"), env=env, log=log
        )

    def read_records(self, kills: Sequence[Kill], clients: Clients) -> Records:
        """Reads all records, after the interrupted runs have ended."""
        headers = {"authorization": f"Bearer {self.key}"}
        with self.running(), httpx.Client(base_url=self.url, timeout=60, headers=headers) as admin:
            deadline = time.monotonic() + GIVE_UP_SECONDS
            while (
                any(run.status == "running" for run in read_runs(self.store, key=KEY)) and time.monotonic() < deadline
            ):
                time.sleep(LEASE_SECONDS)
            key_spending = Decimal(admin.get("/admin/keys").json()["data"][0]["spent_usd"])
        vendor_calls = [VendorCall(**json.loads(line)) for line in self.vendor_log.read_text().splitlines()]
        audited, broken = read_audit(self.store)
        return Records(
            vendor_calls,
            kills,
            clients.answers,
            read_runs(self.store, key=KEY),
            frozenset(audited),
            broken,
            key_spending,
        )


@contextmanager
def create_server(folder: Path, *, seconds: float, faults: float, seed: int) -> Iterator[Server]:
    """Configures a server with a new store in `folder`, without starting it."""
    folder.mkdir()
    key, hashed = generate_key()
    port, store, log = free_port(), f"sqlite:///{folder / 'runs.db'}", folder / "vendor.jsonl"
    with vendor(seconds=seconds, faults=faults, seed=seed, log=log) as upstream:
        config = folder / "server.toml"
        workers = "".join(WORKER.format(name=name, vendor=upstream) for name in "abc")
        settings = {"port": port, "hashed": hashed, "vendor": upstream, "workers": workers, "store": store}
        config.write_text(SETTINGS.format(**settings, lease=LEASE_SECONDS))
        yield Server(f"http://127.0.0.1:{port}", key, config, store, log)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one of the tests."""

    records: Records
    attempts: int
    """Number of requests."""
    speed: dict[str, str] = field(default_factory=dict)
    """Further measurements, by label."""
    counts: dict[str, str] = field(default_factory=dict)
    """Replaces the counts of `count_records`."""
    discrepancies: dict[str, list[str]] = field(default_factory=dict)
    """Replaces those of the records."""


def inject_faults(folder: Path, kills: int, faults: float, seed: int) -> Outcome:
    """Kills a server `kills` times while clients ask."""
    random = Random(seed)
    with create_server(folder, seconds=0.02, faults=faults, seed=seed) as server:
        clients = Clients(server.url, server.key, Random(seed), model="chaos")
        thread = threading.Thread(target=lambda: asyncio.run(clients.ask_until_stopped()))
        thread.start()
        try:
            crashes = [server.kill(random.uniform(0.3, 1.5)) for _ in range(kills)]
            with server.running():
                clients.stop()
                thread.join()
        finally:
            clients.stop()
            thread.join()
        return Outcome(server.read_records([*crashes, server.last_kill()], clients), clients.attempts)


def saturate(folder: Path, seconds: float) -> Outcome:
    """Saturates a server for `seconds`, then kills it."""
    with create_server(folder, seconds=0.0, faults=0.0, seed=0) as server:
        clients = Clients(server.url, server.key, Random(0), model="single")
        with server.running() as process:
            before = processor_seconds(process.pid)
            asyncio.run(clients.saturate(seconds))
            used = processor_seconds(process.pid) - before
        answered_questions = sum(bool(answers.texts) for answers in clients.answers.values())
        speed = {
            "answers a second": f"{answered_questions / seconds:.0f}",
            "processor time of each": f"{used / max(answered_questions, 1) * 1e3:.1f} ms",
        }
        return Outcome(server.read_records([server.last_kill()], clients), clients.attempts, speed)


def main() -> None:
    """Runs both tests, compares the records, and prints the discrepancies."""
    parser = argparse.ArgumentParser(description="Tests the server while everything around it fails.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--faults", type=float, default=0.2, help="share of the vendor's calls that fail")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long a server is saturated")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--outages", type=int, default=3, help="how often Postgres is killed")
    parser.add_argument("--only", choices=("failures", "load", "replicas"), help="run one test")
    options = parser.parse_args()
    console = Console(width=120)
    discrepancies: list[str] = []
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        for title, test in tests(Path(name), options).items():
            if options.only in (None, title):
                discrepancies += show(console, title, test())
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(f"seed {options.seed}; {machine}; no model called, nothing spent", style="dim")
    sys.exit(bool(discrepancies))


def tests(folder: Path, options: argparse.Namespace) -> dict[str, Callable[[], Outcome]]:
    """Returns the three tests by title."""

    def failures() -> Outcome:
        inject_faults(folder / "first", 0, options.faults, options.seed)  # compiles the modules that the server imports
        return inject_faults(folder / "failures", options.kills, options.faults, options.seed)

    def replicas() -> Outcome:
        faults = {"kills": options.kills, "outages": options.outages, "faults": options.faults}
        outcome = break_replicas(folder / "replicas", seed=options.seed, **faults)
        return Outcome(outcome.records, 0, counts=outcome.counts, discrepancies=outcome.discrepancies)

    return {
        "failures": failures,
        "load": lambda: saturate(folder / "load", options.seconds),
        "replicas": replicas,
    }


def show(console: Console, title: str, outcome: Outcome) -> list[str]:
    """Prints the counts and discrepancies of one test, and returns the discrepancies."""
    table = Table(title, "count", box=None, pad_edge=False)
    for label, number in (outcome.counts or count_records(outcome)).items():
        table.add_row(label, str(number))
    table.add_section()
    discrepancies = outcome.discrepancies or outcome.records.discrepancies
    for label, cases in discrepancies.items():
        table.add_row(label, str(len(cases)), style="bold red" if cases else "bold green")
    console.print(table)
    for case in (case for cases in discrepancies.values() for case in cases[:20]):
        console.print(f"  {case}", style="red")
    console.print()
    return [case for cases in discrepancies.values() for case in cases]


def count_records(outcome: Outcome) -> dict[str, object]:
    """Counts what happened in a test of one server."""
    records = outcome.records
    outcomes = Counter(call.outcome for call in records.vendor)
    return {
        "questions": len(records.answers),
        "attempts of clients": outcome.attempts,
        "questions answered": sum(bool(answers.texts) for answers in records.answers.values()),
        "  without an Idempotency-Key": sum(
            bool(answers.texts) and not answers.has_key for answers in records.answers.values()
        ),
        "kills of the server": len(records.kills),
        "runs on record": len(records.runs),
        **{f"  {status}": number for status, number in sorted(Counter(run.status for run in records.runs).items())},
        "calls to the vendor": len(records.vendor),
        **{f"  {how}": outcomes[how] for how in sorted(outcomes)},
        "replies lost with the server": len(records.forgotten()),
        **outcome.speed,
    }


if __name__ == "__main__":
    main()
