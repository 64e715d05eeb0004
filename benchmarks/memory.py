"""What a workflow in flight keeps in memory, against bare asyncio tasks that hold the same text; what is left after.

Run with `uv run python benchmarks/memory.py`. Each measurement is a process of its own. No model is called and nothing
is spent.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl_conductor import Completion, Conductor, Limits, Message, Request, Step, Usage, WorkerPool, Workflow
from rl_conductor.models.scripted import ALL
from rl_conductor.types import FREE, Delta

AT_ONCE = 1_000
ROUNDS = 10
QUESTION, REPLY = (
    "Which sorting algorithm suits nearly sorted data? " * 8,
    "Insertion sort, since few items move. " * 40,
)
READS: tuple[tuple[int, ...], ...] = ((), (), (), (0, 1), (2, 3))
WORKFLOW = Workflow(
    steps=tuple(Step(subtask=f"part {i}", worker="w", access=frozenset(reads)) for i, reads in enumerate(READS))
)


class Waiting:
    """A model that replies once it is let; the last of the five replies of a workflow is held back."""

    name = "waiting"
    price = FREE
    capabilities = ALL

    def __init__(self) -> None:
        self.asked = 0
        self.full, self.let = asyncio.Event(), asyncio.Event()

    async def complete(self, request: Request) -> Completion:
        """The reply; text of its own each time, as a vendor's would be."""
        if "part 4" in request.messages[-1].text:
            self.asked += 1
            if self.asked == AT_ONCE:
                self.full.set()
            await self.let.wait()
        return Completion(message=Message.assistant(f"{self.asked} {REPLY}"), usage=Usage(), model="waiting")

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply in one piece."""
        yield Delta(completion=await self.complete(request))

    async def aclose(self) -> None:
        """Nothing to close."""


def workflows(model: Waiting) -> Callable[[], Awaitable[object]]:
    """Ours, trace and all."""
    conductor = Conductor(model, WorkerPool({"w": model}), limits=Limits(), access="positional")
    return lambda: conductor.run(QUESTION, workflow=WORKFLOW)


def bare(model: Waiting) -> Callable[[], Awaitable[object]]:
    """A task that keeps the question, the prompts and the replies of the same workflow, and nothing besides."""

    async def run() -> list[str]:
        replies: list[str] = []
        kept = [QUESTION]
        for index, reads in enumerate(READS):
            prompt = "\n\n".join((QUESTION, *(replies[i] for i in reads), f"part {index}"))
            kept.append(prompt)
            replies.append((await model.complete(Request(messages=(Message.user(prompt),)))).text)
        return kept + replies

    return run


KINDS = {"ours": workflows, "bare": bare}


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def held(kind: str) -> float:
    """Bytes for each of `AT_ONCE` that wait at their last step."""
    model = Waiting()
    run = KINDS[kind](model)
    model.let.set()
    await run()  # what is built once
    model.let.clear()
    model.asked, before = 0, resident()
    tasks = [asyncio.ensure_future(run()) for _ in range(AT_ONCE)]
    await model.full.wait()
    bytes_each = (resident() - before) / AT_ONCE
    model.let.set()
    await asyncio.gather(*tasks)
    return bytes_each


async def left() -> str:
    """Bytes of the process after each `AT_ONCE` that ran and were forgotten."""
    model = Waiting()
    model.let.set()
    run, sizes = workflows(model), []
    for _ in range(ROUNDS):
        await asyncio.gather(*(run() for _ in range(AT_ONCE)))
        sizes.append(resident())
    return " ".join(map(str, sizes))


def apart(*arguments: str) -> str:
    """What this program prints when it is run with `arguments`."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    """Measure and print."""
    ours, theirs = (float(apart("held", kind)) for kind in KINDS)
    sizes = [int(size) / 2**20 for size in apart("left").split()]
    table = Table("what", "ours", "bare tasks", "ratio", box=None, pad_edge=False)
    table.add_row(
        f"each of {AT_ONCE:,} workflows of 5 steps in flight",
        f"{ours / 1024:.0f} KiB",
        f"{theirs / 1024:.0f} KiB",
        f"{ours / theirs:.2f}",
    )
    console = Console()
    console.print(table)
    for count in (1, ROUNDS // 2, ROUNDS):
        console.print(f"the process after {count * AT_ONCE:,} that are done: {sizes[count - 1]:.0f} MiB")
    console.print(
        f"\nPython {platform.python_version()}; one process each, resident memory; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["held", kind]:
            sys.stdout.write(str(asyncio.run(held(kind))))
        case ["left"]:
            sys.stdout.write(asyncio.run(left()))
        case _:
            main()
