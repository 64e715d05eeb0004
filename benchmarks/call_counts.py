"""Counts the calls of our Python functions that a planned two-step run takes, directly and through the server.

Run with `uv run python benchmarks/call_counts.py [N]`. Entering a function, resuming a coroutine or generator, and each
comprehension are one call. Functions of libraries and the server's writer thread are not counted. The second column
leaves out the calls that the scripted models make, which stand in for models. The counts depend on the code and not on
the machine, except that the timing of the server's writer adds a few calls or none. No model is called and nothing is
spent.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import platform
import sys
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import httpx
from rich.console import Console
from rich.table import Table

from rl_conductor import Completion, Conductor, Planner, Request, WorkerPool
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.app import service_app
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings, StoreEntry

PACKAGES = str(Path(__file__).parents[1] / "packages")
MODEL = inspect.getfile(ScriptedModel)
QUESTION = "Which sorting algorithm suits nearly sorted data?"
PLAN = """model_id = [0, 1]
subtasks = ["Name candidates.", "Answer the question."]
access_list = [[], ["all"]]"""
WARM_UP = 3
"""Runs before the one that is counted: they import modules, compile schemas and fill caches."""


def is_ours(code: CodeType) -> bool:
    """Returns `True` for code of this repository's packages."""
    return code.co_filename.startswith(PACKAGES)


def is_in_model(frame: FrameType) -> bool:
    """Returns `True` for a call that a scripted model makes."""
    return any(caller.f_code.co_filename == MODEL for caller, _ in traceback.walk_stack(frame))


PARENT_FRAMES: WeakKeyDictionary[asyncio.Task[object], int] = WeakKeyDictionary()
"""The stack depth at which each task was created, because a stack ends at its task."""


def stack_depth() -> int:
    """Counts our frames on the stack, and on the stacks that created the current task."""
    task = asyncio.current_task()
    frames = sum(is_ours(frame.f_code) for frame, _ in traceback.walk_stack(None))
    return frames + (PARENT_FRAMES.get(task, 0) if task else 0)


def create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Creates a task for `loop.set_task_factory`."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    PARENT_FRAMES[task] = stack_depth()
    return task


@dataclass
class Counts:
    """The calls of each of our functions, and how many of all calls scripted models make."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    in_models: int = 0


class DepthModel(ScriptedModel):
    """A scripted model that records the stack depth of its last call."""

    depth = 0

    async def complete(self, request: Request) -> Completion:
        """Returns the next reply."""
        self.depth = stack_depth()
        return await super().complete(request)


async def count_calls(run: Callable[[], Awaitable[object]]) -> Counts:
    """Counts the calls of our functions in one run, after some runs as a warm-up."""
    counts = Counts()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_ours(frame.f_code):
            counts.calls[frame.f_code] += 1
            counts.in_models += is_in_model(frame)

    for _ in range(WARM_UP):
        await run()
        await asyncio.sleep(0.2)  # the server stores a run after its response
    sys.setprofile(profile)
    try:
        await run()
    finally:
        sys.setprofile(None)
    return counts


@asynccontextmanager
async def server_client(pool: DiscoveredPool) -> AsyncGenerator[httpx.AsyncClient, None]:
    """Runs a server in this process, without a socket."""
    with TemporaryDirectory() as folder:
        store = StoreEntry(url=f"sqlite:///{folder}/runs.db", lease_seconds=3600)  # no heartbeat while we count
        service = await Service.create(build_catalog(pool, {}), Settings(store=store))
        transport = httpx.ASGITransport(service_app(service))
        async with service.open(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


async def main(most_frequent: int) -> None:
    """Counts both ways and prints the results."""
    drafts, answers = DepthModel("Insertion sort, Timsort."), DepthModel("Timsort.")
    workers = WorkerPool(
        {
            "a": {"model": drafts, "description": "names candidates"},
            "b": {"model": answers, "description": "answers questions"},
        }
    )
    pool = DiscoveredPool(planner=Planner(model=ScriptedModel(PLAN)), pool=workers)
    conductor = Conductor.from_discovered(pool)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(create_task)
    counts = {"Conductor.run": await count_calls(lambda: conductor.run(QUESTION))}
    loop.set_task_factory(None)
    depth = answers.depth
    async with server_client(pool) as client:
        body = {"model": "conductor-mini", "messages": [{"role": "user", "content": QUESTION}]}

        async def post() -> None:
            (await client.post("/v1/chat/completions", json=body)).raise_for_status()

        counts["POST /v1/chat/completions"] = await count_calls(post)
    show(counts, depth, most_frequent=most_frequent)


def show(counts: dict[str, Counts], depth: int, *, most_frequent: int) -> None:
    """Prints the totals, and the most frequent functions of each row."""
    table = Table("two planned steps", "calls", "without models", box=None, pad_edge=False)
    for name, row in counts.items():
        total = row.calls.total()
        table.add_row(name, f"{total:,}", f"{total - row.in_models:,}")
    console = Console()
    console.print(table)
    console.print(f"frames from Conductor.run to a worker's complete: {depth}")
    for name, row in counts.items() if most_frequent else ():
        console.print(f"\n{name}", style="bold")
        for code, count in row.calls.most_common(most_frequent):
            path = Path(code.co_filename).relative_to(PACKAGES)
            place = f"{'/'.join(path.parts[3:])}:{code.co_firstlineno}"
            console.print(f"{count:5d}  {place}  {code.co_qualname}", soft_wrap=True, highlight=False)
    console.print(f"\nPython {platform.python_version()}; no model called, nothing spent", style="dim")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "most_frequent", nargs="?", type=int, default=0, metavar="N", help="list the N most frequent functions"
    )
    asyncio.run(main(parser.parse_args().most_frequent))
