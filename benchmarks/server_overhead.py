"""What `rl-conductor serve` adds to a request, against LiteLLM's proxy before the same vendor on the same machine.

Run with `uv run python benchmarks/server_overhead.py`. The vendor is fake and answers at once, from a process of its
own. Each server is one process with its defaults; ours keeps every run with its trace in SQLite, LiteLLM's keeps
nothing. They take turns, request by request in rounds, and what a direct call takes is subtracted. A workflow is a
plan, two steps at once and a third that reads both: one request to ours, four to LiteLLM's, made by hand.

LiteLLM is installed into an environment of its own under the user's cache folder. No model is called.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from loopback import answers, free_port, running, vendor
from platformdirs import user_cache_path
from rich.console import Console
from rich.table import Table

from rl_conductor.server.keys import hashed

LITELLM = "litellm[proxy]==1.106.2"
ROUNDS, REQUESTS = 12, 40
AT_ONCE, SECONDS, SPRINTS = 16, 2.0, 5
KEY = "sk-one-key-for-both-servers"
SETTINGS = """
port = {port}
[keys.benchmark]
sha256 = "{hashed}"
[planner]
model = "openai:planner"
options = {{ base_url = "{vendor}" }}
{workers}
[profiles.one]
released = 2026-11-21
policy = {{ single = "a" }}
[profiles.three]
released = 2026-11-21
limits = {{ rounds = 1, steps = 3 }}
[store]
url = "sqlite:///{folder}/runs.db"
"""
WORKER = """
[workers.{name}]
model = "openai:{name}"
options = {{ base_url = "{vendor}" }}
"""
PROXIED = """
- model_name: {name}
  litellm_params:
    model: openai/{name}
    api_base: {vendor}
    api_key: none
"""


# ------------------------------------------------------------------------------------------ asking


@dataclass
class Connection:
    """One connection that is kept open, with as little between us and the socket as can be."""

    base_url: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, init=False)

    async def ask(self, model: str, text: str) -> None:
        """One chat completion; anything but success ends the benchmark."""
        host, port = urlsplit(self.base_url).netloc.split(":")
        if self._streams is None:
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        said = await reader.readexactly(int(length))
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise SystemExit(f"{self.base_url}: {answer.decode()}{said.decode()}")

    async def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


class Way:
    """A way to the vendor: `one` call, or a workflow of `three` steps and its plan."""

    def __init__(self, base_url: str, *, plans: bool = False) -> None:
        """`plans` says that a whole workflow takes one request."""
        self._base_url = base_url
        self._plans = plans
        self._connections: list[Connection] = []

    async def close(self) -> None:
        """Hang up all connections."""
        while self._connections:
            await self._connections.pop().close()

    async def one(self) -> None:
        """One question to one worker."""
        await self._ask("one" if self._plans else "a", "This is question 1.")

    async def three(self) -> None:
        """A plan, two parts at once, and the answer."""
        if self._plans:
            await self._ask("three", "This is question 1.")
            return
        await self._ask("planner", "This is question 1.")
        parts = ("Write part one of question 1.", "Write part two of question 1.")
        await asyncio.gather(*(self._ask(name, part) for name, part in zip("ab", parts, strict=True)))
        await self._ask("c", "Write the answer of question 1.")

    async def _ask(self, model: str, text: str) -> None:
        connection = self._connections.pop() if self._connections else Connection(self._base_url)
        await connection.ask(model, text)
        self._connections.append(connection)


# --------------------------------------------------------------------------------------- measuring

Task = Callable[[Way], Awaitable[None]]


async def latencies(ways: dict[str, Way], task: Task) -> dict[str, list[float]]:
    """Seconds of each request on each way, one after the other."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            seconds = [await _timed(way, task) for _ in range(REQUESTS)]
            await way.close()  # servers hang up on connections that are idle while others have their turn
            taken[name] += seconds[1:] if number else []
    return taken


async def _timed(way: Way, task: Task) -> float:
    began = time.perf_counter()
    await task(way)
    return time.perf_counter() - began


async def rates(ways: dict[str, Way], task: Task) -> dict[str, float]:
    """Requests a second on each way with `AT_ONCE` at once, median of sprints that take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(SPRINTS):
        for name, way in ways.items():
            found[name].append(await _sprint(way, task) / SECONDS)
            await way.close()
    return {name: statistics.median(some) for name, some in found.items()}


async def _sprint(way: Way, task: Task) -> int:
    done = 0
    end = time.perf_counter() + SECONDS

    async def go_on() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await task(way)
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(go_on())
    return done


def added(taken: dict[str, list[float]], name: str, share: int) -> float:
    """Seconds that a way adds to the direct one, at a percentile of both."""
    percentile = [statistics.quantiles(taken[one], n=100)[share - 1] for one in (name, "direct")]
    return percentile[0] - percentile[1]


# ----------------------------------------------------------------------------------------- servers


@contextmanager
def ours(folder: Path, upstream: str) -> Iterator[Way]:
    """Our server over this vendor."""
    port = free_port()
    workers = "".join(WORKER.format(name=name, vendor=upstream) for name in "abc")
    config = folder / "conductor.toml"
    config.write_text(SETTINGS.format(port=port, hashed=hashed(KEY), vendor=upstream, workers=workers, folder=folder))
    command = [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "serve", "--config", str(config)]
    env = {**os.environ, "OPENAI_API_KEY": "none"}
    url = f"http://127.0.0.1:{port}"
    with running(command, ready=answers(f"{url}/readyz"), env=env, log=folder / "ours.log"):
        yield Way(url, plans=True)


@contextmanager
def litellm(folder: Path, upstream: str) -> Iterator[Way]:
    """LiteLLM's proxy over this vendor, as its documentation advises for production."""
    port = free_port()
    models = "".join(PROXIED.format(name=name, vendor=upstream) for name in ("planner", "a", "b", "c"))
    config = folder / "litellm.yaml"
    config.write_text(f"model_list:{models}")
    environment = user_cache_path("rl-conductor") / "benchmarks" / LITELLM.partition("==")[2]
    if not (environment / "bin" / "litellm").exists():
        subprocess.run(["uv", "venv", "--quiet", str(environment)], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), LITELLM]
        subprocess.run(install, check=True)
    settings = {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [
        str(environment / "bin" / "litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    url = f"http://127.0.0.1:{port}"
    alive = answers(f"{url}/health/liveliness")
    with running(command, ready=alive, env={**os.environ, **settings}, log=folder / "litellm.log"):
        yield Way(url)


SERVERS = {"ours": ours, "LiteLLM": litellm}


async def main() -> None:
    """Measure and print."""
    table = Table("what", "ours", "LiteLLM", "ratio", "target", box=None, pad_edge=False)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="overhead") as name:
        folder, upstream = Path(name), stack.enter_context(vendor())
        proxies = {name: stack.enter_context(start(folder, upstream)) for name, start in SERVERS.items()}
        ways = {"direct": Way(upstream.removesuffix("/v1")), **proxies}
        for what, task in (("one step", Way.one), ("3-step workflow", Way.three)):
            await report(table, what, ways, task)
    console = Console(width=120)
    console.print(table)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(
        f"\nn = {ROUNDS} rounds of {REQUESTS} requests, {SPRINTS} sprints of {SECONDS:g} s; {LITELLM}, {machine}; "
        "no model called, nothing spent",
        style="dim",
    )


async def report(table: Table, what: str, ways: dict[str, Way], task: Task) -> None:
    """Measure a task on all ways and add its rows."""
    taken = await latencies(ways, task)
    for share in (50, 95):
        mine, theirs = (added(taken, name, share) for name in ("ours", "LiteLLM"))
        row = (f"{what}: added, p{share}", f"{mine * 1e3:.2f} ms", f"{theirs * 1e3:.2f} ms", f"{mine / theirs:.2f}")
        table.add_row(*row, "<= 0.5")
    speed = await rates(ways, task)
    mine, theirs = speed["ours"], speed["LiteLLM"]
    table.add_row(f"{what}: a second, {AT_ONCE} at once", f"{mine:.0f}", f"{theirs:.0f}", f"{mine / theirs:.2f}", "-")


if __name__ == "__main__":
    asyncio.run(main())
