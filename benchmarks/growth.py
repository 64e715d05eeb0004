"""Measures how the processor time of runs grows with steps, workers, turns, text and runs in flight.

Run with `uv run python benchmarks/growth.py [NAME]`. Each row doubles a size three times and fits the exponent of the
processor time to these sizes: 1 is linear, 0 is constant. Fixed costs lower the exponent, so the last doubling is
fitted alone as well. No model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import platform
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from rl_conductor import (
    Capabilities,
    Completion,
    Conductor,
    Limits,
    Message,
    Request,
    Step,
    Usage,
    Worker,
    WorkerPool,
    Workflow,
)
from rl_conductor.models.google.reply import Reply as GoogleReply
from rl_conductor.models.openai.wire import Reply as OpenAIReply
from rl_conductor.plan_text.forms import render
from rl_conductor.plan_text.parser import parse
from rl_conductor.trace.trace import Trace
from rl_conductor.types import FREE, Delta
from rl_conductor.workflow.plan_space import PlanSpace

ROUNDS = 7
SENTENCE = "Insertion sort suits nearly sorted data, since few items move. "
PIECE = 40
"""Characters of a streamed piece."""
LIMIT = 1.15
"""Largest exponent that passes as linear: garbage collection and caches of the processor add a little."""
Run = Callable[[], Awaitable[object]]


class FixedModel:
    """A model that always returns the same text, streamed in pieces."""

    name = "fixed"
    price = FREE
    capabilities = Capabilities()

    def __init__(self, text: str = "ok") -> None:
        self.text = text

    async def complete(self, _: Request) -> Completion:
        """Returns the text."""
        return Completion(message=Message.assistant(self.text), usage=Usage(), model=self.name)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the text in pieces."""
        for start in range(0, len(self.text), PIECE):
            yield Delta(text=self.text[start : start + PIECE])
        yield Delta(completion=await self.complete(request))

    async def aclose(self) -> None:
        """Does nothing: there is no connection to close."""


@dataclass(frozen=True)
class Growth:
    """One row: the size that grows, and how to build a run of it."""

    name: str
    sizes: tuple[int, ...]
    """The smallest one, and three doublings."""
    build: Callable[[int], Run]


def _text(kilobytes: int) -> str:
    return (SENTENCE * (kilobytes * 1024 // len(SENTENCE) + 1))[: kilobytes * 1024]


def _workflow(steps: int, *, reads: int = 1) -> Workflow:
    """Builds a workflow in which each step reads the `reads` steps before it, and the last one all others."""
    access = [range(max(0, i - reads), i) for i in range(steps - 1)] + [range(steps - 1)]
    return Workflow(
        steps=tuple(Step(subtask=f"part {i}", worker="w", access=frozenset(read)) for i, read in enumerate(access))
    )


def _conductor(worker: FixedModel, planner: FixedModel | None = None, **options: object) -> Conductor:
    pool = WorkerPool({"w": worker})
    return Conductor(planner or worker, pool, access="positional", limits=Limits(steps=500), **options)  # type: ignore[arg-type]


def _plan(steps: int, *, reads: int = 1) -> tuple[str, PlanSpace]:
    space = PlanSpace(roster=("w",), allowed=frozenset({"w"}), access="positional", max_steps=500)
    return render(_workflow(steps, reads=reads), space, "lists", reasoning="Split it in parts."), space


def given_steps(reads: int) -> Callable[[int], Run]:
    """A workflow of the caller's."""

    def build(steps: int) -> Run:
        conductor, workflow = _conductor(FixedModel()), _workflow(steps, reads=reads)
        return lambda: conductor.run("Which?", workflow=workflow)

    return build


def limited_steps(steps: int) -> Run:
    """Parallel steps that wait for the only slot."""
    conductor, workflow = _conductor(FixedModel()), _workflow(steps, reads=0)
    limits = Limits(steps=500, concurrency=1, tokens=10**9)
    return lambda: conductor.run("Which?", workflow=workflow, limits=limits)


def planned_steps(steps: int) -> Run:
    """A plan that a model streams, parsed while it grows."""
    conductor = _conductor(FixedModel(), FixedModel(_plan(steps)[0]))
    return lambda: conductor.run("Which?")


def parsed_steps(steps: int) -> Run:
    """The parser alone."""
    text, space = _plan(steps)

    async def run() -> object:
        return parse(text, space, form="lists", repair=True)

    return run


def workers(count: int) -> Run:
    """A planned run with a pool of this size."""
    plan = 'model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]'
    names = [f"w{i}" for i in range(count)]
    pool = WorkerPool([Worker.of(name, FixedModel(), description=f"Knows the subject {name}.") for name in names])
    conductor = Conductor(FixedModel(plan), pool)
    return lambda: conductor.run("Which sorting algorithm suits nearly sorted data?")


def _conversation(turns: int) -> Request:
    pairs = [(Message.user(f"{i}: {SENTENCE}"), Message.assistant(f"{i}: {SENTENCE}")) for i in range(turns)]
    return Request(messages=(*(message for pair in pairs for message in pair), Message.user("Why?")))


def turns(count: int) -> Run:
    """A planned run that goes on with a conversation."""
    plan = 'model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]'
    conductor, request = _conductor(FixedModel(), FixedModel(plan)), _conversation(count)
    return lambda: conductor.run(request)


def stored_turns(count: int) -> Run:
    """The trace of such a run, written and read as JSON."""
    plan = 'model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]'
    conductor, request = _conductor(FixedModel(), FixedModel(plan)), _conversation(count)
    trace: Trace | None = None

    async def run() -> object:
        nonlocal trace
        trace = trace or await conductor.run(request)
        return Trace.model_validate_json(trace.model_dump_json())

    return run


def reply(kilobytes: int) -> Run:
    """A long reply that two steps read."""
    conductor, workflow = _conductor(FixedModel(_text(kilobytes))), _workflow(3)
    return lambda: conductor.run("Which?", workflow=workflow)


def adapter_reply(reply: Callable[[], Any], frame: Callable[[str], Any]) -> Callable[[int], Run]:
    """The chunks of a vendor's stream, put together by its adapter."""

    def build(kilobytes: int) -> Run:
        frames = [frame(SENTENCE[:PIECE])] * (kilobytes * 1024 // PIECE)

        async def run() -> object:
            whole = reply()
            return [whole.add(each) for each in frames]

        return run

    return build


def _tool_call_frame(arguments: str) -> object:
    fragment = {"index": 0, "id": "c", "function": {"name": "search", "arguments": arguments}}
    return {"choices": [{"delta": {"tool_calls": [fragment]}}]}


def _google_frame(text: str) -> object:
    return {"candidates": [{"content": {"parts": [{"text": text}]}}]}


def streamed_reply(start: str) -> Callable[[int], Run]:
    """A long answer, streamed to the caller."""

    def build(kilobytes: int) -> Run:
        conductor = _conductor(FixedModel(start + _text(kilobytes) + "</think>Yes." * bool(start)))
        workflow = _workflow(1)

        async def run() -> object:
            return [event async for event in conductor.events("Which?", workflow=workflow)]

        return run

    return build


def runs(count: int) -> Run:
    """Runs of 5 steps in flight at once."""
    conductor, workflow = _conductor(FixedModel()), _workflow(5)

    async def run() -> object:
        return await asyncio.gather(*(conductor.run("Which?", workflow=workflow) for _ in range(count)))

    return run


ROWS = (
    Growth("steps that each read one", (1, 25, 50, 100, 200), given_steps(1)),
    Growth("parallel steps", (1, 25, 50, 100, 200), given_steps(0)),
    Growth("parallel steps, one slot", (1, 25, 50, 100, 200), limited_steps),
    Growth("steps of a streamed plan", (1, 25, 50, 100, 200), planned_steps),
    Growth("steps, parser alone", (1, 25, 50, 100, 200), parsed_steps),
    Growth("workers", (2, 25, 50, 100, 200), workers),
    Growth("turns of a conversation", (1, 125, 250, 500, 1000), turns),
    Growth("turns, trace as JSON", (1, 125, 250, 500, 1000), stored_turns),
    Growth("KiB of replies", (1, 512, 1024, 2048, 4096), reply),
    Growth("KiB of a streamed answer", (1, 256, 512, 1024, 2048), streamed_reply("")),
    Growth("KiB of streamed reasoning", (1, 256, 512, 1024, 2048), streamed_reply("<think>")),
    Growth(
        "KiB of a streamed tool call",
        (1, 256, 512, 1024, 2048),
        adapter_reply(lambda: OpenAIReply("m"), _tool_call_frame),
    ),
    Growth(
        "KiB in Google's chunks",
        (1, 256, 512, 1024, 2048),
        adapter_reply(lambda: GoogleReply("google:m"), _google_frame),
    ),
    Growth("runs in flight", (1, 125, 250, 500, 1000), runs),
)


async def measure(growth: Growth) -> list[float]:
    """Returns the median milliseconds of processor time of each size, over interleaved rounds."""
    contenders: list[tuple[Run, list[float]]] = [(growth.build(size), []) for size in growth.sizes]
    for number in range(ROUNDS + 1):
        for run, times in contenders:
            gc.collect()  # otherwise it would pay for the garbage of the one before
            started = time.process_time()
            await run()
            await asyncio.sleep(0)  # the loop removes cancelled timers in its next turn
            if number:  # the first round fills caches
                times.append((time.process_time() - started) * 1e3)
    return [statistics.median(times) for _, times in contenders]


def fit_exponent(sizes: tuple[int, ...], times: list[float]) -> float:
    """Returns the slope of the least-squares line through the logarithms."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(t) for t in times]).slope


async def main(part: str) -> None:
    """Measures all rows and prints a table."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # as docs/performance.md advises; by default the collector starts too often
    table = Table(
        "what grows", "from", "to", "from, ms", "to, ms", "exponent", "last", "target", box=None, pad_edge=False
    )
    for growth in (row for row in ROWS if part in row.name):
        sizes, times = growth.sizes, await measure(growth)
        exponents = (fit_exponent(sizes[1:], times[1:]), fit_exponent(sizes[-2:], times[-2:]))
        table.add_row(
            growth.name,
            f"{sizes[0]:,}",
            f"{sizes[-1]:,}",
            f"{times[0]:.1f}",
            f"{times[-1]:.1f}",
            *(f"{exponent:.2f}" for exponent in exponents),
            f"<= {LIMIT}",
        )
    console = Console(width=120)
    console.print(table)
    console.print(
        f"\nn = {ROUNDS} rounds of 5 sizes, medians of processor time; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help="measure only rows whose names contain this text")
    asyncio.run(main(" ".join(parser.parse_args().name)))
