"""Measures workflows in flight: memory against bare asyncio tasks with the same text, leaks, collections.

Also the memory that a vendor can make a run take whose stream is as large as it may be.

Run with `uv run python benchmarks/memory.py`. Each measurement runs in its own process. No model is called and nothing
is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl_conductor import Completion, Conductor, Limits, Message, Request, Step, Usage, WorkerPool, Workflow
from rl_conductor.errors import RunError
from rl_conductor.models.http.reply_limit import MAX_STREAM_BYTES
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.scripted import ALL
from rl_conductor.trace.events import Event
from rl_conductor.types import FREE, Delta

AT_ONCE = 1_000
ROUNDS = 10
CROWD = 10_000
"""Runs in flight at once for the processor time."""
PIECES = (4, 100)
"""Characters of the pieces of a stream that never ends."""
QUESTION, REPLY = (
    "Which sorting algorithm suits nearly sorted data? " * 8,
    "Insertion sort, since few items move. " * 40,
)
READS: tuple[tuple[int, ...], ...] = ((), (), (), (0, 1), (2, 3))
WORKFLOW = Workflow(
    steps=tuple(Step(subtask=f"part {i}", worker="w", access=frozenset(reads)) for i, reads in enumerate(READS))
)


class GatedModel:
    """A model that holds back the last reply of each workflow until it is released."""

    name = "waiting"
    price = FREE
    capabilities = ALL

    def __init__(self, runs: int = AT_ONCE) -> None:
        self.runs = runs
        self.waiting = 0
        self.all_waiting, self.released = asyncio.Event(), asyncio.Event()

    async def complete(self, request: Request) -> Completion:
        """Returns a reply with a new string each time, like a provider's."""
        if "part 4" in request.messages[-1].text:
            self.waiting += 1
            if self.waiting == self.runs:
                self.all_waiting.set()
            await self.released.wait()
        return Completion(message=Message.assistant(f"{self.waiting} {REPLY}"), usage=Usage(), model="waiting")

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece."""
        yield Delta(completion=await self.complete(request))

    async def aclose(self) -> None:
        """Does nothing: there is no connection to close."""


def workflows(model: GatedModel) -> Callable[[], Awaitable[object]]:
    """Our executor, including the trace."""
    conductor = Conductor(model, WorkerPool({"w": model}), limits=Limits(), access="positional")
    return lambda: conductor.run(QUESTION, workflow=WORKFLOW)


def bare_tasks(model: GatedModel) -> Callable[[], Awaitable[object]]:
    """A task that keeps only the question, prompts and replies of the same workflow."""

    async def run() -> list[str]:
        replies: list[str] = []
        texts = [QUESTION]
        for index, reads in enumerate(READS):
            prompt = "\n\n".join((QUESTION, *(replies[i] for i in reads), f"part {index}"))
            texts.append(prompt)
            replies.append((await model.complete(Request.user(prompt))).text)
        return texts + replies

    return run


KINDS = {"ours": workflows, "bare": bare_tasks}


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def measure_bytes_per_run(kind: str) -> float:
    """Returns the bytes per run of `AT_ONCE` runs that wait at their last step."""
    model = GatedModel()
    run = KINDS[kind](model)
    model.released.set()
    await run()  # warms up: imports and caches
    model.released.clear()
    model.waiting, baseline = 0, resident()
    tasks = [asyncio.ensure_future(run()) for _ in range(AT_ONCE)]
    await model.all_waiting.wait()
    bytes_each = (resident() - baseline) / AT_ONCE
    model.released.set()
    await asyncio.gather(*tasks)
    return bytes_each


async def measure_process_sizes() -> str:
    """Returns the bytes of the process after each batch of `AT_ONCE` finished runs."""
    model = GatedModel()
    model.released.set()
    run, sizes = workflows(model), []
    for _ in range(ROUNDS):
        await asyncio.gather(*(run() for _ in range(AT_ONCE)))
        sizes.append(resident())
    return " ".join(map(str, sizes))


async def measure_seconds(collections: str) -> str:
    """Returns the seconds of processor time of each of `CROWD` runs at once, and how many of them are collections."""
    model = GatedModel(CROWD)
    run = workflows(model)
    model.released.set()
    await run()
    model.released.clear()
    model.waiting = 0
    if collections == "serve":
        from rl_conductor_server.process.tuning import collect_garbage_rarely  # noqa: PLC0415 - memory of its own

        collect_garbage_rarely()
    collecting = 0.0

    def measure_collection(phase: str, _: dict[str, int]) -> None:
        nonlocal collecting
        collecting += time.process_time() * (1 if phase == "stop" else -1)

    gc.callbacks.append(measure_collection)
    started = time.process_time()
    tasks = [asyncio.ensure_future(run()) for _ in range(CROWD)]
    await model.all_waiting.wait()
    model.released.set()
    await asyncio.gather(*tasks)
    return f"{(time.process_time() - started) / CROWD} {collecting / CROWD}"


async def serve_endless_stream(size: str) -> None:
    """Prints a port, and answers its connections with a stream of pieces of `size` characters."""
    frame = f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': 'x' * int(size)}}]})}\n\n".encode()
    block = frame * (2**16 // len(frame))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for _ in range(2 * MAX_STREAM_BYTES // len(block)):
            writer.write(block)
            await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def measure_endless_stream(size: str) -> str:
    """Returns the memory of the process in MiB before a run over such a stream, whose events are kept, and its peak."""
    arguments = (sys.executable, __file__, "endless", size)
    server = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    port = (await server.stdout.readline()).decode().strip()
    model = OpenAIModel("m", base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    conductor, events, before = Conductor(model, WorkerPool({"w": model})), list[Event](), resident()
    workflow = Workflow(steps=(Step(subtask="part", worker="w", access=frozenset()),))
    with suppress(RunError):
        await conductor.run(QUESTION, workflow=workflow, stream=True, on_event=events.append)
    server.kill()
    await server.wait()
    return f"{before / 2**20} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10}"


def run_in_process(*arguments: str) -> str:
    """Runs this program with `arguments` in a process of its own and returns its output."""
    process = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return process.stdout


def main() -> None:
    """Runs all measurements and prints the results."""
    ours, theirs = (float(run_in_process("held", kind)) for kind in KINDS)
    sizes = [int(size) / 2**20 for size in run_in_process("left").split()]
    table = Table("what", "ours", "bare tasks", "ratio", box=None, pad_edge=False)
    table.add_row(
        f"each of {AT_ONCE:,} workflows of 5 steps in flight",
        f"{ours / 1024:.0f} KiB",
        f"{theirs / 1024:.0f} KiB",
        f"{ours / theirs:.2f}",
    )
    console = Console(width=120)
    console.print(table)
    for count in (1, ROUNDS // 2, ROUNDS):
        console.print(f"the process after {count * AT_ONCE:,} that are done: {sizes[count - 1]:.0f} MiB")
    for name in ("default", "serve"):
        total, collecting = (float(seconds) * 1e3 for seconds in run_in_process("crowd", name).split())
        console.print(
            f"{CROWD:,} runs at once, {name} thresholds of the collector: {total:.2f} ms of processor time each, "
            f"{collecting:.2f} ms of them collections"
        )
    for size in PIECES:
        before, peak = (float(number) for number in run_in_process("stream", str(size)).split())
        console.print(
            f"an endless stream of pieces of {size} characters: the process grows from {before:.0f} to {peak:.0f} MiB"
        )
    console.print(
        f"\nPython {platform.python_version()}; one process each, resident memory; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["held", kind]:
            sys.stdout.write(str(asyncio.run(measure_bytes_per_run(kind))))
        case ["left"]:
            sys.stdout.write(asyncio.run(measure_process_sizes()))
        case ["crowd", collections]:
            sys.stdout.write(asyncio.run(measure_seconds(collections)))
        case ["stream", size]:
            sys.stdout.write(asyncio.run(measure_endless_stream(size)))
        case ["endless", size]:
            asyncio.run(serve_endless_stream(size))
        case _:
            argparse.ArgumentParser(description=__doc__).parse_args()
            main()
