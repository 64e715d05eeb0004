"""Measures the overhead of the LangGraph node against a hand-written graph, the core's executor and the critical path.

Run with `uv run python benchmarks/langgraph_overhead.py`. Results are ratios of medians over interleaved rounds;
absolute times depend on the machine. Workers do nothing or sleep; no model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import os
import platform
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from rich.console import Console
from rich.table import Table
from typing_extensions import TypedDict

from langchain_conductor.graph.node import create_conductor
from rl_conductor import Completion, Conductor, Message, Policy, Request, Step, Usage, WorkerPool, Workflow
from rl_conductor.models.scripted import ALL
from rl_conductor.plan_text.forms import render
from rl_conductor.types import FREE, Delta

QUESTION = "Which of three sorting algorithms suits nearly sorted data?"
ROUNDS, RUNS, SLEEPS = 15, 10, 9

Contender = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Shape:
    """The shape of a plan: the steps that each step reads, and its seconds."""

    reads: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]

    @property
    def workflow(self) -> Workflow:
        steps = (Step(subtask=f"part {i}", worker=f"w{i}", access=frozenset(r)) for i, r in enumerate(self.reads))
        return Workflow(steps=tuple(steps))

    @property
    def critical(self) -> float:
        return self.workflow.critical_path(self.seconds)


READS = ((), (), (), (0, 1), (2, 3))
"""Three independent steps, one that joins two of them, one that joins the rest."""
IDLE = Shape(READS, (0.0,) * 5)
EVEN = Shape(READS, (0.05,) * 5)
UNEVEN = Shape(((), (0,), (), (0, 1, 2)), (0.05, 0.1, 0.1, 0.05))
"""A chain of 50 and 100 ms parallel to a step of 100 ms, then one of 50 ms: longer if the chain waits for the step."""


class FixedReplyModel:
    """A model with a fixed reply, sent immediately or after a fixed time."""

    name = "says"
    price = FREE
    capabilities = ALL

    def __init__(self, text: str, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.reply = Completion(message=Message.assistant(text), usage=Usage(), model="says")

    async def complete(self, _: Request) -> Completion:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return self.reply

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        completion = await self.complete(request)
        yield Delta(text=completion.text, completion=completion)

    async def aclose(self) -> None:
        pass


def conductor(shape: Shape) -> Conductor:
    """Builds a conductor with a planner that always returns this plan."""
    pool = WorkerPool({f"w{i}": FixedReplyModel("ok", seconds) for i, seconds in enumerate(shape.seconds)})
    space = Policy().space(pool.cards, access="positional")
    plan = render(shape.workflow, space, "lists", reasoning="Split it.")
    return Conductor(FixedReplyModel(plan), pool, access="positional")


def executor(shape: Shape) -> Contender:
    """The core: a plan, and the executor's DAG."""
    core = conductor(shape)
    return lambda: core.run(QUESTION)


def node(shape: Shape, *, saved: bool = False) -> Contender:
    """The node in a user's graph: a plan, and a subgraph that is built, compiled and run."""
    return build_graph(create_conductor(conductor(shape)), saved=saved)


class Replies(TypedDict):
    """Graph state: replies by step."""

    replies: Annotated[dict[int, str], operator.or_]


def by_hand(shape: Shape, *, saved: bool = False) -> Contender:
    """The same graph, static and compiled once: without plan, limits and trace."""
    graph = StateGraph(Replies, input_schema=MessagesState, output_schema=MessagesState)

    def step(index: int) -> Runnable[Replies, Replies]:
        model = FixedReplyModel("ok", shape.seconds[index])

        async def run(state: Replies) -> Replies:
            seen = (state["replies"][i] for i in shape.reads[index])
            request = Request.user("\n".join((QUESTION, *seen)))
            return {"replies": {index: (await model.complete(request)).text}}

        return RunnableLambda(run)

    for index, reads in enumerate(shape.reads):
        graph.add_node(f"s{index}", step(index))
        graph.add_edge([f"s{i}" for i in reads] if reads else START, f"s{index}")
    graph.add_edge(f"s{len(shape.reads) - 1}", END)
    return build_graph(graph.compile(), saved=saved)


def build_graph(solve: Any, *, saved: bool) -> Contender:
    """Wraps a node or subgraph in a user's graph and returns its runner."""
    builder = StateGraph(MessagesState)
    builder.add_node("solve", solve)
    builder.add_edge(START, "solve")
    graph = builder.compile(checkpointer=InMemorySaver() if saved else None)
    threads = iter(range(1_000_000))
    question: Any = {"messages": [HumanMessage(QUESTION)]}
    return lambda: graph.ainvoke(question, {"configurable": {"thread_id": str(next(threads))}})


async def measure(contenders: dict[str, Contender], *, rounds: int, runs: int) -> dict[str, float]:
    """Returns the median seconds per run of each contender, over interleaved rounds."""
    seconds_per_run: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            started = time.perf_counter()
            for _ in range(runs):
                await run()
            seconds_per_run[name].append((time.perf_counter() - started) / runs)
    return {name: statistics.median(times) for name, times in seconds_per_run.items()}


async def main() -> None:
    """Runs all measurements and prints a table."""
    contenders = {"executor": executor, "node": node, "by hand": by_hand}
    idle = await measure({name: make(IDLE) for name, make in contenders.items()}, rounds=ROUNDS, runs=RUNS)
    saved_contenders: dict[str, Contender] = {"node": node(IDLE, saved=True), "by hand": by_hand(IDLE, saved=True)}
    saved = await measure(saved_contenders, rounds=ROUNDS, runs=RUNS)
    table = Table("what", "ours", "against", "theirs", "ratio", box=None, pad_edge=False)

    def add_row(what: str, ours: float, against: str, theirs: float) -> None:
        table.add_row(what, f"{ours * 1e3:.1f} ms", against, f"{theirs * 1e3:.1f} ms", f"{ours / theirs:.2f}")

    add_row("node: 5 steps, no-op workers", idle["node"], "by hand, compiled once", idle["by hand"])
    add_row("the same", idle["node"], "the core's executor", idle["executor"])
    add_row("checkpointed in memory", saved["node"], "by hand, checkpointed", saved["by hand"])
    for shape, what in ((EVEN, "5 steps of 50 ms"), (UNEVEN, "a chain beside a slow step")):
        slow = await measure({name: make(shape) for name, make in contenders.items()}, rounds=SLEEPS, runs=1)
        add_row(f"node: {what}", slow["node"], "critical path", shape.critical)
        add_row("by hand: the same", slow["by hand"], "critical path", shape.critical)
        add_row("executor: the same", slow["executor"], "critical path", shape.critical)
    Console(width=120).print(table)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    Console(width=120).print(
        f"\nn = {ROUNDS} rounds of {RUNS} runs, {SLEEPS} where workers sleep, medians; "
        f"langgraph {version('langgraph')}, {machine}; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
