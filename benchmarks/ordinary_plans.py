"""Measures the plans of trained and prompted planners for 60 ordinary requests, over five pools of workers with cards.

Run with `uv run python benchmarks/ordinary_plans.py`. Each request goes to one of the pools in turn. A plan is accepted
if it has at most two steps and its last worker's card covers the kind of request; these criteria, the requests in
`out_of_domain.txt` and the pools in `ordinary_pools.toml` were written before any plan was drawn. Plans are greedy and
are not executed. No model is called over the network and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rl_conductor import Card, Conductor, Planner, Sampling, ScriptedModel, Worker, WorkerPool
from rl_conductor.models import model
from rl_conductor.trace.trace import PlanRecord
from rl_conductor_training.routing.domain import task_domain
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.tasks.groups import group_of

FOLDER = Path(__file__).parent
POOLS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "ordinary_pools.toml").read_text("utf-8"))
REQUESTS = [line.split(": ", 1) for line in (FOLDER / "out_of_domain.txt").read_text("utf-8").splitlines()]
"""The kind and the text of each request."""
MAX_STEPS = 2
TRAINED, PROMPTED = "embedded:conductor-135m", "embedded:qwen2.5-coder-0.5b"


@dataclass(frozen=True)
class Verdict:
    """The plan of one request, judged by the criteria."""

    is_short: bool
    fits: bool
    """Whether the card of the last step's worker covers the kind of request."""

    @property
    def is_accepted(self) -> bool:
        """Whether the plan meets both criteria."""
        return self.is_short and self.fits


def build_pool(workers: Mapping[str, Any]) -> WorkerPool:
    """Builds a pool of workers that are never called."""
    return WorkerPool(
        Worker.of(name, ScriptedModel(""), card=Card(name=name, strengths=entry["strengths"]))
        for name, entry in workers.items()
    )


def build_planners(prompted: Sequence[str], threads: int) -> dict[str, Planner]:
    """Builds the trained planner, the prompted ones, and the trained one that leaves other requests to the first."""
    greedy = Sampling(max_tokens=160, temperature=0.0)
    trained = Planner(model=model(TRAINED, threads=threads), roster="anonymous", examples=0, sampling=greedy)
    general = {name: Planner(model=model(name, threads=threads), sampling=greedy) for name in prompted}
    task = composite("train", size=80)
    domain = task_domain(task.samples, {sample.id: group_of(sample) for sample in task.samples})
    with_domain = replace(trained, domain=domain, general=next(iter(general.values())))
    return {TRAINED: trained, f"{TRAINED} with a domain": with_domain, **general}


def judge(record: PlanRecord, kind: str, workers: Mapping[str, Any]) -> Verdict:
    """Applies the criteria to a plan."""
    assert record.workflow is not None
    covering = {name for name, entry in workers.items() if kind in entry["fits"]} or workers.keys()
    return Verdict(len(record.workflow.steps) <= MAX_STEPS, record.workflow.steps[-1].worker in covering)


async def draw(planner: Planner, requests: Sequence[Sequence[str]], console: Console) -> list[Verdict]:
    """Draws a plan for each request, over the pools in turn."""
    verdicts = []
    for (kind, text), workers in zip(requests, cycle(POOLS.values()), strict=False):
        record = await Conductor(planner, build_pool(workers)).plan(text)
        verdicts.append(judge(record, kind, workers))
        steps = " → ".join(step.worker for step in record.workflow.steps) if record.workflow else ""
        console.print(f"{'+' if verdicts[-1].is_accepted else '-'} {text}: {steps}", highlight=False, soft_wrap=True)
    return verdicts


def share(values: Sequence[bool]) -> str:
    """Returns a mean with its standard error."""
    mean = sum(values) / len(values)
    return f"{mean:.2f} ± {sqrt(mean * (1 - mean) / len(values)):.2f}"


async def measure(prompted: Sequence[str], limit: int, threads: int, console: Console) -> None:
    """Prints the shares of plans that meet the criteria, for each planner."""
    table = Table("planner", "n", f"at most {MAX_STEPS} steps", "fitting last worker", "accepted")
    planners = build_planners(prompted, threads)
    for name, planner in planners.items():
        console.rule(name)
        verdicts = await draw(planner, REQUESTS[:limit], console)
        columns = zip(*((each.is_short, each.fits, each.is_accepted) for each in verdicts), strict=True)
        table.add_row(name, str(len(verdicts)), *map(share, columns))
    console.print(table)
    for planner in planners.values():
        await planner.model.aclose()


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompted", nargs="*", default=[PROMPTED], metavar="MODEL", help="models of prompted planners")
    parser.add_argument("--limit", type=int, default=len(REQUESTS), help="number of requests")
    parser.add_argument("--threads", type=int, default=2, help="threads of each model")
    args = parser.parse_args()
    asyncio.run(measure(args.prompted, args.limit, args.threads, Console()))


if __name__ == "__main__":
    main()
