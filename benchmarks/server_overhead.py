"""Measures the time that `rl-conductor serve` adds to a request, against LiteLLM's proxy for the same vendor.

Run with `uv run python benchmarks/server_overhead.py`. The vendor is fake and replies immediately, from a process of
its own. Each server is one process with its defaults, except that 256 requests may wait for ours. Ours stores every run
with its trace in SQLite, LiteLLM's stores nothing. They take turns in rounds, and the time of a direct call is
subtracted. A workflow is a plan, two parallel steps and a third that reads both: one request to ours, four to
LiteLLM's, sent by this script. Requests a second are those of 1 to 256 clients that send without pause. A streamed
reply has 200 chunks, which come each millisecond or without pause; what a chunk costs is the processor time of the
server's process, including its share of the request. Streams are compared with `passthrough.py` as well, a proxy that
only forwards bytes.

LiteLLM is installed into an environment of its own under the user's cache folder. No model is called.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loopback import CHUNK_SECONDS, CHUNKS, free_port, processor_seconds, responds, run_program, vendor
from peer_environments import install
from rich.console import Console
from rich.table import Table
from server_clients import KEY, Client

from rl_conductor_server.auth.key_secrets import hash_key

LITELLM = "litellm[proxy]==1.106.2"
ROUNDS, REQUESTS, STREAMS = 12, 40, 5
CLIENTS, SECONDS, SPRINTS = (1, 16, 64, 256), 2.0, 5
SETTINGS = """
port = {port}
[keys.benchmark]
sha256 = "{hashed}"
[planner]
model = "openai:planner"
options = {{ base_url = "{vendor}" }}
{workers}
[models.one]
released = 2026-11-21
policy = {{ single = "a" }}
[models.streamed]
released = 2026-11-21
policy = {{ single = "streamed" }}
[models.burst]
released = 2026-11-21
policy = {{ single = "burst" }}
[models.three]
released = 2026-11-21
limits = {{ rounds = 1, steps = 3 }}
policy = {{ deny = ["streamed", "burst"] }}
[intake]
waiting = 256
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


async def measure_rates(clients: dict[str, Client], task: Task, concurrency: int) -> dict[str, float]:
    """Returns the requests per second with `concurrency` in flight, by client; medians of interleaved sprints."""
    rates_by_client: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(SPRINTS):
        for name, client in clients.items():
            rates_by_client[name].append(await _sprint(client, task, concurrency))
            await client.close()
    return {name: statistics.median(samples) for name, samples in rates_by_client.items()}


async def _sprint(client: Client, task: Task, concurrency: int) -> float:
    completed = 0
    start = time.perf_counter()

    async def send_requests() -> None:
        nonlocal completed
        while time.perf_counter() < start + SECONDS:
            await task(client)
            completed += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(send_requests())
    return completed / (time.perf_counter() - start)


async def measure_streams(clients: dict[str, Client], model: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Returns the seconds until the first text of each stream, and the processor seconds per chunk, by client."""
    firsts: dict[str, list[float]] = {name: [] for name in clients}
    processor = dict.fromkeys(clients, 0.0)
    for number in range(ROUNDS + 1):
        for name, client in clients.items():
            before = processor_seconds(client.process) if client.process else 0.0
            seconds = [await client.run_stream(model) for _ in range(STREAMS)]
            await client.close()
            if number:  # the first round warms up
                firsts[name] += seconds[1:]
                processor[name] += processor_seconds(client.process) - before if client.process else 0.0
    return firsts, {name: seconds / (ROUNDS * STREAMS * CHUNKS) for name, seconds in processor.items()}


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
    workers = "".join(WORKER.format(name=name, vendor=upstream) for name in (*"abc", *CHUNK_SECONDS))
    config = folder / "server.toml"
    config.write_text(SETTINGS.format(port=port, hashed=hash_key(KEY), vendor=upstream, workers=workers, folder=folder))
    command = [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "serve", "--config", str(config)]
    env = {**os.environ, "OPENAI_API_KEY": "none"}
    url = f"http://127.0.0.1:{port}"
    with run_program(command, ready=responds(f"{url}/readyz"), env=env, log=folder / "ours.log") as process:
        yield Client(url, process=process.pid, runs_workflows=True)


@contextmanager
def litellm(folder: Path, upstream: str) -> Iterator[Client]:
    """Runs LiteLLM's proxy for this vendor, configured for production as documented."""
    port = free_port()
    models = "".join(LITELLM_MODEL.format(name=name, vendor=upstream) for name in ("planner", *"abc", *CHUNK_SECONDS))
    config = folder / "litellm.yaml"
    config.write_text(f"model_list:{models}")
    settings = {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(install(LITELLM) / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    alive = responds(f"{url}/health/liveliness")
    env = {**os.environ, **settings}
    with run_program(command, ready=alive, env=env, log=folder / "litellm.log") as process:
        yield Client(url, process=process.pid)


@contextmanager
def passthrough(folder: Path, upstream: str) -> Iterator[Client]:
    """Runs a proxy that only forwards bytes to this vendor."""
    port = free_port()
    command = [
        sys.executable,
        str(Path(__file__).with_name("passthrough.py")),
        f"--port={port}",
        f"--upstream={upstream}",
    ]
    url = f"http://127.0.0.1:{port}"
    with run_program(command, ready=responds(url), log=folder / "passthrough.log") as process:
        yield Client(url, process=process.pid)


SERVERS = {"ours": ours, "LiteLLM": litellm}


async def main() -> None:
    """Runs all measurements and prints a table."""
    table = Table("what", "ours", "LiteLLM", "ratio", "passthrough", "target", box=None, pad_edge=False)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="overhead") as name:
        folder, upstream = Path(name), stack.enter_context(vendor())
        servers = {name: stack.enter_context(start(folder, upstream)) for name, start in SERVERS.items()}
        clients = {"direct": Client(upstream.removesuffix("/v1")), **servers}
        bare = stack.enter_context(passthrough(folder, upstream))
        for label, task in (("one step", Client.run_single), ("3-step workflow", Client.run_workflow)):
            await add_latencies(table, label, clients, task)
        await add_streams(table, {**clients, "passthrough": bare})
        for label, task in (("one step", Client.run_single), ("3-step workflow", Client.run_workflow)):
            await add_rates(table, label, servers, task)
    console = Console(width=120)
    console.print(table)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    console.print(
        f"\nn = {ROUNDS} rounds of {REQUESTS} requests and {STREAMS} streams of {CHUNKS} chunks, {SPRINTS} sprints of "
        f"{SECONDS:g} s; {LITELLM}, {machine}; no model called, nothing spent",
        style="dim",
        soft_wrap=True,
    )


async def add_latencies(table: Table, label: str, clients: dict[str, Client], task: Task) -> None:
    """Adds the time that each server adds to a request."""
    seconds_by_client = await measure_latencies(clients, task)
    for percentile in (50, 95):
        add_times(table, f"{label}: added, p{percentile}", seconds_by_client, percentile)


async def add_streams(table: Table, clients: dict[str, Client]) -> None:
    """Adds what each server adds to a streamed reply, and what a proxy does that only forwards bytes."""
    firsts, chunks = await measure_streams(clients, "streamed")
    add_times(table, "stream: added until the first text, p50", firsts, 50, "", bare=True)
    first = {name: statistics.median(seconds) * 1e3 for name, seconds in firsts.items()}
    over = [first[name] - first["passthrough"] for name in SERVERS]
    table.add_row(
        "stream: the same, over the passthrough", *(f"{time:.2f} ms" for time in over), "", "", "ours <= 2 ms"
    )
    add_chunks(table, "stream: processor time of a chunk each ms", chunks, "")
    _, chunks = await measure_streams(clients, "burst")
    add_chunks(table, "stream: of a chunk without pause", chunks, "ours <= 60 µs")


def add_chunks(table: Table, label: str, chunks: dict[str, float], target: str) -> None:
    """Adds the processor time of a chunk."""
    ours, theirs, bare = (chunks[name] * 1e6 for name in (*SERVERS, "passthrough"))
    table.add_row(label, f"{ours:.0f} µs", f"{theirs:.0f} µs", f"{ours / theirs:.2f}", f"{bare:.0f} µs", target)


def add_times(
    table: Table,
    label: str,
    seconds_by_client: dict[str, list[float]],
    percentile: int,
    target: str = "<= 0.5",
    *,
    bare: bool = False,
) -> None:
    """Adds a row of the time that each server adds to direct calls, with `bare` also that of the passthrough."""
    ours, theirs = (added_seconds(seconds_by_client, name, percentile) for name in SERVERS)
    passed = f"{added_seconds(seconds_by_client, 'passthrough', percentile) * 1e3:.2f} ms" if bare else ""
    table.add_row(label, f"{ours * 1e3:.2f} ms", f"{theirs * 1e3:.2f} ms", f"{ours / theirs:.2f}", passed, target)


async def add_rates(table: Table, label: str, servers: dict[str, Client], task: Task) -> None:
    """Adds the requests a second of each server by the number of clients."""
    for concurrency in CLIENTS:
        rates = await measure_rates(servers, task, concurrency)
        ours, theirs = (rates[name] for name in SERVERS)
        clients = f"{concurrency} client{'s' if concurrency > 1 else ''}"
        table.add_row(
            f"{label}: a second, {clients}", f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}", "", ">= 3"
        )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
