"""Measures the overhead of orchestration: a 5-step workflow with no-op workers, compared with other frameworks.

Run with `uv run python benchmarks/executor_overhead.py`. Results are ratios of medians over interleaved rounds.
Times are of the processor, except with slow workers, and depend on the machine. No model is called and nothing is
spent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from executor_peers import PEERS, QUESTION, READS, Noop, Run, by_hand
from peer_environments import install
from rich.console import Console
from rich.table import Table

from rl_conductor import Conductor, Limits, Step, WorkerPool, Workflow
from rl_conductor.plan_text.forms import render
from rl_conductor.plan_text.parser import parse
from rl_conductor.workflow.plan_space import PlanSpace

ROUNDS, RUNS = 15, 40
AUTOGEN = "autogen-core==0.7.5"
"""Has an environment of its own, because it needs an older protobuf."""
PYDANTIC = "from pydantic import BaseModel"
IMPORTS = (
    ("import rl_conductor", "pydantic", PYDANTIC),
    ("from rl_conductor import Conductor", "pydantic and a model class", f"{PYDANTIC}\nclass A(BaseModel): x: int\n"),
)
"""Imports of ours, and what they are compared with."""
IMPORTS_EACH = 15
"""Number of times that each is measured."""
SLEEP = 0.05
TARGETS = {"by hand": "<= 5", "langgraph built per run": ">= 15", "langgraph prebuilt": ">= 5"}
"""Of the ratios: how many times longer a peer takes than ours, and ours than code written by hand."""


WORKFLOW = Workflow(
    steps=tuple(Step(subtask=f"part {i}", worker="w", access=frozenset(reads)) for i, reads in enumerate(READS))
)


def conductor(seconds: float = 0.0, limits: Limits | None = None) -> Run:
    """Our executor: the whole path after planning, including the trace."""
    conductor = Conductor(Noop(), WorkerPool({"w": Noop(seconds)}), access="positional", limits=limits)
    return lambda: conductor.run(QUESTION, workflow=WORKFLOW)


def run_built(build: Callable[[], Run]) -> Run:
    """Builds the graph for each run, as is necessary for a graph that a model generates."""

    async def run() -> object:
        return await build()()

    return run


async def measure_runs(contenders: dict[str, Run]) -> dict[str, float]:
    """Returns the median microseconds of processor time per run of each contender, over interleaved rounds."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            gc.collect()  # otherwise it would pay for the garbage of the one before
            started = time.process_time()
            for _ in range(RUNS):
                await run()
            rounds[name].append((time.process_time() - started) / RUNS * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


async def measure_slow_workers() -> float:
    """Returns the median wall seconds with workers that take 50 ms each."""
    run, times = conductor(SLEEP), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure_autogen() -> float:
    """Returns the median microseconds of processor time per run of AutoGen, in a process of its own."""
    script = Path(__file__).with_name("executor_autogen.py")
    command = [str(install(AUTOGEN) / "python"), str(script), str(ROUNDS), str(RUNS)]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def measure_parsing() -> float:
    """Returns the median microseconds of processor time to parse and validate a plan of five steps."""
    space = PlanSpace(roster=("a", "w"), allowed=frozenset({"a", "w"}), access="positional")
    text = render(WORKFLOW, space, "lists", reasoning="Split it in parts.")
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(RUNS):
            parse(text, space, form="lists", repair=True)
        times.append((time.process_time() - started) / RUNS * 1e6)
    return statistics.median(times)


def measure_imports(statement: str, baseline: str, bytecode: str) -> tuple[float, float]:
    """Returns the median seconds of processor time that a new interpreter takes for each statement alone.

    They take turns, as a machine may be slower for seconds. Bytecode is cached in the folder `bytecode`, as it is for
    installed packages.
    """
    environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

    def run_code(code: str) -> float:
        code += "\nimport time\nprint(time.process_time())"
        arguments = [sys.executable, "-c", code]
        return float(subprocess.run(arguments, check=True, env=environment, capture_output=True).stdout)

    codes = ("pass", baseline, statement)
    rounds = [[run_code(code) for code in codes] for _ in range(IMPORTS_EACH + 1)]
    times = [(ours - bare, theirs - bare) for bare, theirs, ours in rounds[1:]]  # the first one writes the bytecode
    return statistics.median(ours for ours, _ in times), statistics.median(theirs for _, theirs in times)


async def main() -> None:
    """Runs all measurements and prints a table."""
    contenders = {"conductor": conductor(), "limited": conductor(limits=Limits(tokens=10**6)), "by hand": by_hand()}
    for name, build in PEERS.items():
        contenders |= {f"{name} built per run": run_built(build), f"{name} prebuilt": build()}
    runs = await measure_runs(contenders)
    critical = WORKFLOW.critical_path() * SLEEP
    slow = await measure_slow_workers()
    table = Table("what", "ours", "against", "theirs", "ratio", "target", box=None, pad_edge=False)

    def add_row(what: str, ours: str, against: str, theirs: str, ratio: float, target: str) -> None:
        table.add_row(what, ours, against, theirs, f"{ratio:.2f}", target)

    ours_us, limited_us = runs.pop("conductor"), runs.pop("limited")
    for peer, theirs_us in runs.items():
        if peer == "by hand":
            label, ratio = peer, ours_us / theirs_us
        else:
            package, _, how = peer.partition(" ")
            label, ratio = f"{package} {version(package)}, {how}", theirs_us / ours_us
        add_row(
            "5 steps, no-op workers", f"{ours_us:.0f} µs", label, f"{theirs_us:.0f} µs", ratio, TARGETS.get(peer, "-")
        )
    autogen_us, label = measure_autogen(), AUTOGEN.replace("==", " ") + ", prebuilt"
    add_row("5 steps, no-op workers", f"{ours_us:.0f} µs", label, f"{autogen_us:.0f} µs", autogen_us / ours_us, "-")
    hand_us = runs["by hand"]
    add_row("with a limit on tokens", f"{limited_us:.0f} µs", "by hand", f"{hand_us:.0f} µs", limited_us / hand_us, "-")
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
        for statement, against, baseline in IMPORTS:
            ours, bare = measure_imports(statement, baseline, bytecode)
            add_row(statement, f"{ours * 1e3:.0f} ms", against, f"{bare * 1e3:.0f} ms", ours / bare, "<= 2")
    console = Console(width=120)
    console.print(table)
    console.print(
        f"\nn = {ROUNDS} rounds of {RUNS} runs, medians of processor time; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; no model called, nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
