"""What orchestration itself costs: one 5-step workflow with workers that do nothing, against peers in the same run.

Run with `uv run python benchmarks/executor_overhead.py`. Everything is a ratio of medians over interleaved rounds;
absolute times depend on the machine. No model is called and nothing is spent.
"""

from __future__ import annotations

import asyncio
import operator
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Annotated, TypedDict

from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.graph import END, START, StateGraph
from rich.console import Console
from rich.table import Table
from workflows import Context
from workflows import Workflow as IndexWorkflow
from workflows import step as index_step
from workflows.events import Event, StartEvent, StopEvent

from rl_conductor import Completion, Conductor, Message, Request, Step, Usage, WorkerPool, Workflow
from rl_conductor.models.scripted import ALL
from rl_conductor.parser import parse
from rl_conductor.plan import render
from rl_conductor.types import FREE, Delta
from rl_conductor.workflow import PlanSpace

QUESTION = "Which of three sorting algorithms suits nearly sorted data?"
READS: tuple[tuple[int, ...], ...] = ((), (), (), (0, 1), (2, 3))
"""The graph: three independent steps, one that joins two of them, one that joins the rest."""
ROUNDS, RUNS = 15, 40
SLEEP = 0.05


class Noop:
    """A model that replies at once, or after a fixed time."""

    name = "noop"
    price = FREE
    capabilities = ALL

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.reply = Completion(message=Message.assistant("ok"), usage=Usage(), model="noop")

    async def complete(self, _: Request) -> Completion:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return self.reply

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(completion=await self.complete(request))

    async def aclose(self) -> None:
        pass


WORKFLOW = Workflow(
    steps=tuple(Step(subtask=f"part {i}", worker="w", access=frozenset(reads)) for i, reads in enumerate(READS))
)


def conductor(seconds: float = 0.0) -> Callable[[], Awaitable[object]]:
    """Our executor: the whole path after planning, trace and all."""
    conductor = Conductor(Noop(), WorkerPool({"w": Noop(seconds)}), access="positional")
    return lambda: conductor.run(QUESTION, workflow=WORKFLOW)


def by_hand(seconds: float = 0.0) -> Callable[[], Awaitable[object]]:
    """The least that Python can do: the same graph written out with asyncio, prompts joined by hand."""
    model = Noop(seconds)

    async def ask(*seen: str) -> str:
        request = Request(messages=(Message.user("\n".join((QUESTION, *seen))),))
        return (await model.complete(request)).text

    async def join(*steps: Awaitable[str]) -> str:
        return await ask(*await asyncio.gather(*steps))

    return lambda: join(ask(), join(ask(), ask()))


class State(TypedDict):
    """Replies by step."""

    replies: Annotated[dict[int, str], operator.or_]


def langgraph() -> Callable[[], Awaitable[object]]:
    """LangGraph, given the same graph at run time: it builds, compiles and runs it."""
    model = Noop()

    def node(index: int) -> Runnable[State, State]:
        async def run(state: State) -> State:
            seen = [state["replies"][i] for i in READS[index]]
            request = Request(messages=(Message.user("\n".join((QUESTION, *seen))),))
            return {"replies": {index: (await model.complete(request)).text}}

        return RunnableLambda(run)

    async def build_and_run() -> object:
        graph = StateGraph(State)
        for index, reads in enumerate(READS):
            graph.add_node(f"s{index}", node(index))
            graph.add_edge([f"s{i}" for i in reads] if reads else START, f"s{index}")
        graph.add_edge(f"s{len(READS) - 1}", END)
        return await graph.compile().ainvoke({"replies": {}})

    return build_and_run


class Part(Event):
    """A reply on its way to the step that joins it."""

    index: int
    text: str


class Joined(Event):
    """The replies of the first join."""

    text: str


class Graph(IndexWorkflow):
    """The same graph as a LlamaIndex workflow."""

    model = Noop()

    async def ask(self, *seen: str) -> str:
        request = Request(messages=(Message.user("\n".join((QUESTION, *seen))),))
        return (await self.model.complete(request)).text

    @index_step
    async def leaves(self, ctx: Context, _: StartEvent) -> Part | None:
        for index, text in enumerate(await asyncio.gather(self.ask(), self.ask(), self.ask())):
            ctx.send_event(Part(index=index, text=text))
        return None

    @index_step
    async def join(self, ctx: Context, part: Part) -> Joined | None:
        parts = ctx.collect_events(part, [Part] * 3)
        return Joined(text=await self.ask(*(one.text for one in parts[:2]))) if parts else None

    @index_step
    async def last(self, joined: Joined) -> StopEvent:
        return StopEvent(result=await self.ask(joined.text))


def llama_index() -> Callable[[], Awaitable[object]]:
    """LlamaIndex workflows, with the graph written down beforehand."""

    async def run() -> object:
        return await Graph().run()

    return run


async def microseconds(contenders: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Median microseconds of one run of each, over rounds that take turns."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            started = time.perf_counter()
            for _ in range(RUNS):
                await run()
            rounds[name].append((time.perf_counter() - started) / RUNS * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


async def sleeping() -> float:
    """Median wall seconds with workers that take 50 ms each."""
    run, times = conductor(SLEEP), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def parsing() -> float:
    """Median microseconds to parse and check a plan of five steps."""
    space = PlanSpace(roster=("a", "w"), allowed=frozenset({"a", "w"}), access="positional")
    text = render(WORKFLOW, space, "lists", reasoning="Split it in parts.")
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(RUNS):
            parse(text, space, form="lists", repair=True)
        times.append((time.perf_counter() - started) / RUNS * 1e6)
    return statistics.median(times)


def import_seconds(statement: str, bytecode: str) -> float:
    """Median seconds that a fresh interpreter needs for `statement`, less what it needs for none.

    Modules come from the folder `bytecode`, where they lie compiled after the first time, as installed ones do.
    """
    environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

    def once(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        return time.perf_counter() - started

    once(statement)
    return statistics.median(once(statement) - once("pass") for _ in range(9))


async def main() -> None:
    """Measure and print."""
    runs = await microseconds(
        {"conductor": conductor(), "by hand": by_hand(), "langgraph": langgraph(), "llama-index": llama_index()}
    )
    critical = WORKFLOW.critical_path() * SLEEP
    asleep = await sleeping()
    table = Table("what", "ours", "against", "theirs", "ratio", "target", box=None, pad_edge=False)

    def row(what: str, ours: str, against: str, theirs: str, ratio: float, target: str) -> None:
        table.add_row(what, ours, against, theirs, f"{ratio:.2f}", target)

    mine = runs["conductor"]
    for peer, target in (("langgraph", ">= 10 times less"), ("llama-index", "-"), ("by hand", "<= 6")):
        shown = mine / runs[peer] if peer == "by hand" else runs[peer] / mine
        label = f"{peer} {version('langgraph')}, built per run" if peer == "langgraph" else peer
        row("5 steps, no-op workers", f"{mine:.0f} µs", label, f"{runs[peer]:.0f} µs", shown, target)
    row(
        "5 steps of 50 ms",
        f"{asleep * 1e3:.1f} ms",
        "critical path",
        f"{critical * 1e3:.1f} ms",
        asleep / critical,
        "<= 1.03",
    )
    table.add_row("parse and check 5 steps", f"{parsing():.0f} µs", "", "", "", "about 100 µs")
    with TemporaryDirectory() as bytecode:
        bare = import_seconds("from pydantic import BaseModel", bytecode)
        for statement in ("import rl_conductor", "from rl_conductor import Conductor"):
            ours = import_seconds(statement, bytecode)
            row(statement, f"{ours * 1e3:.0f} ms", "pydantic", f"{bare * 1e3:.0f} ms", ours / bare, "<= 1.3")
    Console().print(table)
    Console().print(
        f"\nn = {ROUNDS} rounds of {RUNS} runs, medians; Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    asyncio.run(main())
