"""Measures the overhead of orchestration: a 5-step workflow with no-op workers, compared with other frameworks.

Run with `uv run python benchmarks/executor_overhead.py`. Results are ratios of medians over interleaved rounds;
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
from rl_conductor.plan_text.forms import render
from rl_conductor.plan_text.parser import parse
from rl_conductor.types import FREE, Delta
from rl_conductor.workflow.workflow import PlanSpace

QUESTION = "Which of three sorting algorithms suits nearly sorted data?"
READS: tuple[tuple[int, ...], ...] = ((), (), (), (0, 1), (2, 3))
"""The steps that each step reads: three independent ones, one that joins two of them, one that joins the rest."""
ROUNDS, RUNS = 15, 40
SLEEP = 0.05


class Noop:
    """A model that replies immediately, or after a fixed time."""

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
    """Our executor: the whole path after planning, including the trace."""
    conductor = Conductor(Noop(), WorkerPool({"w": Noop(seconds)}), access="positional")
    return lambda: conductor.run(QUESTION, workflow=WORKFLOW)


def by_hand(seconds: float = 0.0) -> Callable[[], Awaitable[object]]:
    """Lower bound: the same graph written with bare asyncio and joined strings."""
    model = Noop(seconds)

    async def ask(*seen: str) -> str:
        request = Request(messages=(Message.user("\n".join((QUESTION, *seen))),))
        return (await model.complete(request)).text

    async def join(*steps: Awaitable[str]) -> str:
        return await ask(*await asyncio.gather(*steps))

    return lambda: join(ask(), join(ask(), ask()))


class State(TypedDict):
    """Graph state: replies by step."""

    replies: Annotated[dict[int, str], operator.or_]


def langgraph() -> Callable[[], Awaitable[object]]:
    """LangGraph, which builds, compiles and runs the same graph each time."""
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
    """Event with the reply of a step for the join."""

    index: int
    text: str


class Joined(Event):
    """Event with the reply of the first join."""

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
        return Joined(text=await self.ask(*(part.text for part in parts[:2]))) if parts else None

    @index_step
    async def last(self, joined: Joined) -> StopEvent:
        return StopEvent(result=await self.ask(joined.text))


def llama_index() -> Callable[[], Awaitable[object]]:
    """LlamaIndex workflows, with a static graph."""

    async def run() -> object:
        return await Graph().run()

    return run


async def measure_runs(contenders: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Returns the median microseconds per run of each contender, over interleaved rounds."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            started = time.perf_counter()
            for _ in range(RUNS):
                await run()
            rounds[name].append((time.perf_counter() - started) / RUNS * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


async def measure_slow_workers() -> float:
    """Returns the median wall seconds with workers that take 50 ms each."""
    run, times = conductor(SLEEP), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure_parsing() -> float:
    """Returns the median microseconds to parse and validate a plan of five steps."""
    space = PlanSpace(roster=("a", "w"), allowed=frozenset({"a", "w"}), access="positional")
    text = render(WORKFLOW, space, "lists", reasoning="Split it in parts.")
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(RUNS):
            parse(text, space, form="lists", repair=True)
        times.append((time.perf_counter() - started) / RUNS * 1e6)
    return statistics.median(times)


def measure_import(statement: str, bytecode: str) -> float:
    """Returns the median seconds that a fresh interpreter needs for `statement`, minus those for none.

    Bytecode is cached in the folder `bytecode`, as it is for installed packages.
    """
    environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

    def run_code(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        return time.perf_counter() - started

    run_code(statement)
    return statistics.median(run_code(statement) - run_code("pass") for _ in range(9))


async def main() -> None:
    """Runs all measurements and prints a table."""
    runs = await measure_runs(
        {"conductor": conductor(), "by hand": by_hand(), "langgraph": langgraph(), "llama-index": llama_index()}
    )
    critical = WORKFLOW.critical_path() * SLEEP
    slow = await measure_slow_workers()
    table = Table("what", "ours", "against", "theirs", "ratio", "target", box=None, pad_edge=False)

    def add_row(what: str, ours: str, against: str, theirs: str, ratio: float, target: str) -> None:
        table.add_row(what, ours, against, theirs, f"{ratio:.2f}", target)

    ours_us = runs["conductor"]
    for peer, target in (("langgraph", ">= 10 times less"), ("llama-index", "-"), ("by hand", "<= 6")):
        ratio = ours_us / runs[peer] if peer == "by hand" else runs[peer] / ours_us
        label = f"{peer} {version('langgraph')}, built per run" if peer == "langgraph" else peer
        add_row("5 steps, no-op workers", f"{ours_us:.0f} µs", label, f"{runs[peer]:.0f} µs", ratio, target)
    add_row(
        "5 steps of 50 ms",
        f"{slow * 1e3:.1f} ms",
        "critical path",
        f"{critical * 1e3:.1f} ms",
        slow / critical,
        "<= 1.03",
    )
    table.add_row("parse and check 5 steps", f"{measure_parsing():.0f} µs", "", "", "", "about 100 µs")
    with TemporaryDirectory() as bytecode:
        bare = measure_import("from pydantic import BaseModel", bytecode)
        for statement in ("import rl_conductor", "from rl_conductor import Conductor"):
            ours = measure_import(statement, bytecode)
            add_row(statement, f"{ours * 1e3:.0f} ms", "pydantic", f"{bare * 1e3:.0f} ms", ours / bare, "<= 1.3")
    Console().print(table)
    Console().print(
        f"\nn = {ROUNDS} rounds of {RUNS} runs, medians; Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    asyncio.run(main())
