"""Measures the time that `rl-conductor serve` adds to a request, against LiteLLM's proxy for the same vendor.

Run with `uv run python benchmarks/server_overhead.py`. The vendor is fake and replies immediately, from a process of
its own. Each server is one process with its defaults; ours stores every run with its trace in SQLite, LiteLLM's stores
nothing. They take turns in rounds, and the time of a direct call is subtracted. A workflow is a plan, two parallel
steps and a third that reads both: one request to ours, four to LiteLLM's, sent by this script.

LiteLLM is installed into an environment of its own under the user's cache folder. No model is called.
"""

from __future__ import annotations

import argparse
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

from loopback import free_port, responds, run_program, vendor
from platformdirs import user_cache_path
from rich.console import Console
from rich.table import Table

from rl_conductor_server.auth.keys import hash_key

LITELLM = "litellm[proxy]==1.106.2"
ROUNDS, REQUESTS = 12, 40
CONCURRENCY, SECONDS, SPRINTS = 16, 2.0, 5
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
LITELLM_MODEL = """
- model_name: {name}
  litellm_params:
    model: openai/{name}
    api_base: {vendor}
    api_key: none
"""


# ------------------------------------------------------------------------------------------ clients


@dataclass
class Connection:
    """A kept-alive connection with minimal overhead above the socket."""

    base_url: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, init=False)

    async def ask(self, model: str, text: str) -> None:
        """Sends one chat completion; a failure ends the benchmark."""
        host, port = urlsplit(self.base_url).netloc.split(":")
        if self._streams is None:
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        response_head = await reader.readuntil(b"\r\n\r\n")
        length = response_head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        response_body = await reader.readexactly(int(length))
        if b" 200 " not in response_head.partition(b"\r\n")[0]:
            raise SystemExit(f"{self.base_url}: {response_head.decode()}{response_body.decode()}")

    async def close(self) -> None:
        """Closes the connection, if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


class Client:
    """Sends single calls, or workflows of a plan and three steps, to one server."""

    def __init__(self, base_url: str, *, runs_workflows: bool = False) -> None:
        """With `runs_workflows` the server runs a whole workflow in one request."""
        self._base_url = base_url
        self._runs_workflows = runs_workflows
        self._connections: list[Connection] = []

    async def close(self) -> None:
        """Closes all connections of this client."""
        while self._connections:
            await self._connections.pop().close()

    async def run_single(self) -> None:
        """Asks one worker one question."""
        await self._ask("one" if self._runs_workflows else "a", "This is question 1.")

    async def run_workflow(self) -> None:
        """Runs a plan, two parallel parts, and the answer."""
        if self._runs_workflows:
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

Task = Callable[[Client], Awaitable[None]]


async def measure_latencies(clients: dict[str, Client], task: Task) -> dict[str, list[float]]:
    """Returns the seconds of each sequential request, by client."""
    seconds_by_client: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(ROUNDS + 1):
        for name, client in clients.items():
            seconds = [await _time_request(client, task) for _ in range(REQUESTS)]
            await client.close()  # servers close connections that stay idle during the other turns
            seconds_by_client[name] += seconds[1:] if number else []
    return seconds_by_client


async def _time_request(client: Client, task: Task) -> float:
    start = time.perf_counter()
    await task(client)
    return time.perf_counter() - start


async def measure_rates(clients: dict[str, Client], task: Task) -> dict[str, float]:
    """Returns the requests per second with `CONCURRENCY` in flight, by client; medians of interleaved sprints."""
    rates_by_client: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(SPRINTS):
        for name, client in clients.items():
            rates_by_client[name].append(await _sprint(client, task) / SECONDS)
            await client.close()
    return {name: statistics.median(samples) for name, samples in rates_by_client.items()}


async def _sprint(client: Client, task: Task) -> int:
    completed = 0
    end = time.perf_counter() + SECONDS

    async def send_requests() -> None:
        nonlocal completed
        while time.perf_counter() < end:
            await task(client)
            completed += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(send_requests())
    return completed


def added_seconds(seconds_by_client: dict[str, list[float]], name: str, percentile: int) -> float:
    """Returns the seconds that a server adds to direct calls, at a percentile of both."""
    server, direct = (
        statistics.quantiles(seconds_by_client[client], n=100)[percentile - 1] for client in (name, "direct")
    )
    return server - direct


# ----------------------------------------------------------------------------------------- servers


@contextmanager
def ours(folder: Path, upstream: str) -> Iterator[Client]:
    """Runs our server for this vendor."""
    port = free_port()
    workers = "".join(WORKER.format(name=name, vendor=upstream) for name in "abc")
    config = folder / "conductor.toml"
    config.write_text(SETTINGS.format(port=port, hashed=hash_key(KEY), vendor=upstream, workers=workers, folder=folder))
    command = [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "serve", "--config", str(config)]
    env = {**os.environ, "OPENAI_API_KEY": "none"}
    url = f"http://127.0.0.1:{port}"
    with run_program(command, ready=responds(f"{url}/readyz"), env=env, log=folder / "ours.log"):
        yield Client(url, runs_workflows=True)


@contextmanager
def litellm(folder: Path, upstream: str) -> Iterator[Client]:
    """Runs LiteLLM's proxy for this vendor, configured for production as documented."""
    port = free_port()
    models = "".join(LITELLM_MODEL.format(name=name, vendor=upstream) for name in ("planner", "a", "b", "c"))
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
    alive = responds(f"{url}/health/liveliness")
    with run_program(command, ready=alive, env={**os.environ, **settings}, log=folder / "litellm.log"):
        yield Client(url)


SERVERS = {"ours": ours, "LiteLLM": litellm}


async def main() -> None:
    """Runs all measurements and prints a table."""
    table = Table("what", "ours", "LiteLLM", "ratio", "target", box=None, pad_edge=False)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="overhead") as name:
        folder, upstream = Path(name), stack.enter_context(vendor())
        servers = {name: stack.enter_context(start(folder, upstream)) for name, start in SERVERS.items()}
        clients = {"direct": Client(upstream.removesuffix("/v1")), **servers}
        for label, task in (("one step", Client.run_single), ("3-step workflow", Client.run_workflow)):
            await add_rows(table, label, clients, task)
    console = Console(width=120)
    console.print(table)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(
        f"\nn = {ROUNDS} rounds of {REQUESTS} requests, {SPRINTS} sprints of {SECONDS:g} s; {LITELLM}, {machine}; "
        "no model called, nothing spent",
        style="dim",
    )


async def add_rows(table: Table, label: str, clients: dict[str, Client], task: Task) -> None:
    """Measures a task with all clients and adds its rows to the table."""
    seconds_by_client = await measure_latencies(clients, task)
    for percentile in (50, 95):
        our_time, their_time = (added_seconds(seconds_by_client, name, percentile) for name in ("ours", "LiteLLM"))
        times = (f"{our_time * 1e3:.2f} ms", f"{their_time * 1e3:.2f} ms", f"{our_time / their_time:.2f}")
        table.add_row(f"{label}: added, p{percentile}", *times, "<= 0.5")
    request_rates = await measure_rates(clients, task)
    our_rate, their_rate = request_rates["ours"], request_rates["LiteLLM"]
    label += f": a second, {CONCURRENCY} at once"
    table.add_row(label, f"{our_rate:.0f}", f"{their_rate:.0f}", f"{our_rate / their_rate:.2f}", "-")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
