"""What clients lose when everything around `rl-conductor serve` fails: the vendor, the connections, the server itself.

Run with `uv run python benchmarks/server_chaos.py`; with the defaults it takes about two minutes. It does two things,
each with a new store, and talks to loopback addresses only.

Torment: the vendor answers a share of all calls with a 503, silence, a reset or half a reply, and the server is killed
(SIGKILL) again and again under load and started anew over the same store. Most clients ask until they have an answer,
always under the same Idempotency-Key; some hang up now and then, and some ask again for what they have. The others ask
once, without such a key.

Saturation: 16 clients ask without a pause and without an Idempotency-Key, as quickly as the server can answer, and one
more with a key. After some seconds the server is killed, and started again.

Afterwards three books are compared: the vendor's, the server's and the clients'.

- lost: a question without the answer that was written for it, or whose stream ended well with anything else; an answer
  whose run is not on record; a run that is still under way after all servers that ran it are gone;
- duplicated: two answers to one question, or a call for a step that was on record as finished when the server died;
- wrongly charged: a run whose cost is not that of the replies it holds, a call that the vendor made and no run knows,
  or a key whose spending is not the sum of its runs;
- unaudited: a run that is over without an audit record, or a broken chain of records;
- refused: a request that the saturated server did not answer.

What was answered or bought within a second before a kill may be missing on record. Exits with 1 unless all counts are
0. No model is called and nothing is spent.
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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from random import Random
from subprocess import Popen

import httpx
from loopback import VendorCall, free_port, responds, run_program, vendor
from rich.console import Console
from rich.table import Table
from server_books import Answers, Books, Kill, audited_runs, replies, stored_runs, stored_steps

from rl_conductor_server.auth.keys import new_key

NAMED, NAMELESS = 9, 3
"""Clients of the torment that ask under an Idempotency-Key, and that do not."""
BUSY = 16
"""Clients that saturate a server."""
GIVE_UP = 60.0
"""Seconds after the last kill at which a client that is still without an answer counts its question as lost."""
LEASE = 1.0
"""Seconds of silence after which a server counts as dead."""

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
[profiles.single]
released = 2026-11-21
policy = {{ single = "a" }}
[keys.chaos]
sha256 = "{hashed}"
usd = "1000"
[store]
url = "sqlite:///{store}"
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
    """They ask one question after another."""

    def __init__(self, url: str, key: str, random: Random, *, model: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=20, headers={"authorization": f"Bearer {key}"})
        self._random = random
        self._model = model
        self._numbers = count(1)
        self._last_call = float("inf")
        self.answers: dict[int, Answers] = {}
        self.attempts = 0

    def no_more(self) -> None:
        """Ask no further questions, and come to an end with those under way."""
        self._last_call = time.monotonic()

    async def torment(self) -> None:
        """Ask until told to stop, whatever becomes of the server."""
        async with self._http, asyncio.TaskGroup() as group:
            for _ in range(NAMED):
                group.create_task(self._ask_until_answered())
            for _ in range(NAMELESS):
                group.create_task(self._ask_once())

    async def saturate(self, seconds: float) -> None:
        """Keep the server as busy as it can be for so long, then hang up."""
        async with self._http:
            asking = [asyncio.create_task(self._ask_at_once(is_named=number == BUSY)) for number in range(BUSY + 1)]
            await asyncio.sleep(seconds)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _next(self, *, is_named: bool) -> int:
        number = next(self._numbers)
        self.answers[number] = Answers(is_named)
        return number

    async def _ask_until_answered(self) -> None:
        while self._last_call > time.monotonic():
            number = self._next(is_named=True)
            for _ in range(1 + (self._random.random() < 0.2)):  # some ask again for what they have
                await self._repeat(number)

    async def _repeat(self, number: int) -> None:
        while time.monotonic() < self._last_call + GIVE_UP:
            patience = 0.3 if self._random.random() < 0.1 else GIVE_UP  # some hang up
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
                await self._attempt(self._next(is_named=False), stream=self._random.random() < 0.5)
            except httpx.TransportError:
                await asyncio.sleep(self._random.uniform(0.1, 0.5))

    async def _ask_at_once(self, *, is_named: bool) -> None:
        while True:
            number = self._next(is_named=is_named)
            try:
                status = await self._attempt(number, stream=False)
            except asyncio.CancelledError:
                del self.answers[number]  # it was never told anything
                raise
            if status != 200:
                self.answers[number].refused.append(status)

    async def _attempt(self, number: int, *, stream: bool) -> int:
        """The status of a reply, 0 for a stream that broke off; a good one is noted."""
        self.attempts += 1
        known = self.answers[number]
        question = {"role": "user", "content": f"This is question {number}."}
        body = {"model": self._model, "messages": [question], "stream": stream}
        named = {"idempotency-key": f"question-{number}"} if known.is_named else {}
        reply = await self._http.post("/v1/chat/completions", json=body, headers=named)
        if reply.status_code != 200:
            return reply.status_code
        text = streamed(reply.text) if stream else reply.json()["choices"][0]["message"]["content"]
        if text is None:
            return 0
        known.texts.add(text)
        known.runs.setdefault(reply.headers["x-conductor-run"], time.time())
        if not stream:
            known.costs.add(Decimal(reply.headers["x-conductor-cost-usd"]))
        return 200


def streamed(body: str) -> str | None:
    """The text of a stream that came to its end."""
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]" or any('"error"' in event for event in events):
        return None
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# -------------------------------------------------------------------------------------- the server


@dataclass(frozen=True)
class Server:
    """A server that is killed again and again, before a vendor of its own."""

    url: str
    key: str
    config: Path
    store: Path
    vendor_log: Path

    def kill(self, seconds: float) -> Kill:
        """Start it and kill it after so long."""
        with self.running():
            time.sleep(seconds)
        return self.killed()

    def killed(self) -> Kill:
        """What it has on record, now that it is dead."""
        calls = stored_steps(self.store).values()
        return Kill(time.time(), frozenset(reply[1:] for one in calls for reply in replies(one)))

    def running(self) -> AbstractContextManager[Popen[bytes]]:
        """It runs while the block does, and dies by SIGKILL."""
        command = [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "serve"]
        env = {**os.environ, "OPENAI_API_KEY": "none"}
        log = self.config.with_suffix(".log")
        return run_program(
            [*command, "--config", str(self.config)], ready=responds(f"{self.url}/readyz"), env=env, log=log
        )

    def books(self, kills: Sequence[Kill], clients: Clients) -> Books:
        """All of them, once the runs that died with a server have ended."""
        headers = {"authorization": f"Bearer {self.key}"}
        with self.running(), httpx.Client(base_url=self.url, timeout=60, headers=headers) as admin:
            deadline = time.monotonic() + GIVE_UP
            while any(run.status == "running" for run in stored_runs(self.store)) and time.monotonic() < deadline:
                time.sleep(LEASE)
            spent = Decimal(admin.get("/admin/keys").json()["data"][0]["spent_usd"])
        made = [VendorCall(**json.loads(line)) for line in self.vendor_log.read_text().splitlines()]
        audited, broken = audited_runs(self.store)
        return Books(made, kills, clients.answers, stored_runs(self.store), frozenset(audited), broken, spent)


@contextmanager
def served(folder: Path, *, seconds: float, faults: float, seed: int) -> Iterator[Server]:
    """A server that is not started yet, over a new store in this folder."""
    folder.mkdir()
    key, hashed = new_key()
    port, store, log = free_port(), folder / "runs.db", folder / "vendor.jsonl"
    with vendor(seconds=seconds, faults=faults, seed=seed, log=log) as upstream:
        config = folder / "conductor.toml"
        workers = "".join(WORKER.format(name=name, vendor=upstream) for name in "abc")
        settings = {"port": port, "hashed": hashed, "vendor": upstream, "workers": workers, "store": store}
        config.write_text(SETTINGS.format(**settings, lease=LEASE))
        yield Server(f"http://127.0.0.1:{port}", key, config, store, log)


@dataclass(frozen=True)
class Outcome:
    """What came of one of the two."""

    books: Books
    attempts: int
    """How often clients asked."""
    speed: dict[str, str] = field(default_factory=dict)
    """What was measured on the way."""


def torment(folder: Path, kills: int, faults: float, seed: int) -> Outcome:
    """Kill a server so often while clients ask."""
    random = Random(seed)
    with served(folder, seconds=0.02, faults=faults, seed=seed) as server:
        clients = Clients(server.url, server.key, Random(seed), model="chaos")
        asking = threading.Thread(target=lambda: asyncio.run(clients.torment()))
        asking.start()
        try:
            died = [server.kill(random.uniform(0.3, 1.5)) for _ in range(kills)]
            with server.running():
                clients.no_more()
                asking.join()
        finally:
            clients.no_more()
            asking.join()
        return Outcome(server.books([*died, server.killed()], clients), clients.attempts)


def saturate(folder: Path, seconds: float) -> Outcome:
    """Kill a server after so many seconds of more requests than it can answer at once."""
    with served(folder, seconds=0.0, faults=0.0, seed=0) as server:
        clients = Clients(server.url, server.key, Random(0), model="single")
        with server.running() as process:
            before = processor_seconds(process.pid)
            asyncio.run(clients.saturate(seconds))
            used = processor_seconds(process.pid) - before
        answered = sum(bool(one.texts) for one in clients.answers.values())
        speed = {
            "answers a second": f"{answered / seconds:.0f}",
            "processor time of each": f"{used / answered * 1e3:.1f} ms",
        }
        return Outcome(server.books([server.killed()], clients), clients.attempts, speed)


def processor_seconds(pid: int) -> float:
    """What a process has used of a processor; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Torment and saturate a server, compare the books, and print what does not agree."""
    told = argparse.ArgumentParser(description="Chaos before, behind and inside of the server.")
    told.add_argument("--kills", type=int, default=10)
    told.add_argument("--faults", type=float, default=0.2, help="share of the vendor's calls that fail")
    told.add_argument("--seconds", type=float, default=15.0, help="how long a server is saturated")
    told.add_argument("--seed", type=int, default=int(time.time()))
    given = told.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        folder = Path(name)
        torment(folder / "first", 0, given.faults, given.seed)  # compiles what a server imports
        tormented = torment(folder / "torment", given.kills, given.faults, given.seed)
        saturated = saturate(folder / "saturation", given.seconds)
    console = Console(width=120)
    for title, outcome in (("torment", tormented), ("saturation", saturated)):
        show(console, title, outcome)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(f"seed {given.seed}; {machine}; no model called, nothing spent", style="dim")
    sys.exit(any(any(outcome.books.wrong.values()) for outcome in (tormented, saturated)))


def show(console: Console, title: str, outcome: Outcome) -> None:
    """Print what happened and what came of it."""
    books = outcome.books
    ended = Counter(call.outcome for call in books.vendor)
    happened = {
        "questions": len(books.answers),
        "attempts of clients": outcome.attempts,
        "questions answered": sum(bool(one.texts) for one in books.answers.values()),
        "  without an Idempotency-Key": sum(bool(one.texts) and not one.is_named for one in books.answers.values()),
        "kills of the server": len(books.kills),
        "runs on record": len(books.runs),
        **{f"  {status}": number for status, number in sorted(Counter(run.status for run in books.runs).items())},
        "calls to the vendor": len(books.vendor),
        **{f"  {how}": ended[how] for how in sorted(ended)},
        "replies lost with the server": len(books.forgotten()),
        **outcome.speed,
    }
    table = Table(title, "count", box=None, pad_edge=False)
    for what, number in happened.items():
        table.add_row(what, str(number))
    table.add_section()
    for what, cases in books.wrong.items():
        table.add_row(what, str(len(cases)), style="bold red" if cases else "bold green")
    console.print(table)
    for case in (case for cases in books.wrong.values() for case in cases[:20]):
        console.print(f"  {case}", style="red")
    console.print()


if __name__ == "__main__":
    main()
