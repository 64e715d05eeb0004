"""What composition can gain on the composite questions, before any training: each worker alone, and the oracle.

Run with `uv run python benchmarks/composite_ceiling.py --size 48`. It asks the small pool's real models in process, by
the same executor as everything else, and spends nothing. Replies are kept in `--cache`, so a second run takes seconds.
The right plans that the search finds can be kept, as what a warm start of training learns from (`--plans`), and so can
how well the best worker and the oracle do on each question, which a training is held against (`--references`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl_conductor import Conductor, RunError, ScriptedModel, Workflow
from rl_conductor.bench.settings import read_settings
from rl_conductor.bench.systems.oracle import Oracle
from rl_conductor.tasks.base import Sample, Score, Task, mean
from rl_conductor.tasks.composite import composite
from rl_conductor.train.diagnostics import Reference
from rl_conductor.train.lines import write_lines
from rl_conductor.workers.source import Memory, SmallPool

RECIPE = Path(__file__).parents[1] / "recipes" / "bench-small.toml"
"""Its oracle says which workflows are searched, short ones first."""


@dataclass
class Search:
    """Every worker on every question, and for each question the first right chain."""

    conductor: Conductor
    task: Task
    chains: dict[str, Workflow]
    """What is tried, by its name."""
    alone: dict[str, dict[str, Score]] = field(default_factory=lambda: defaultdict(dict))
    """By worker and sample."""
    found: dict[str, str] = field(default_factory=dict)
    """The name of the chain by sample, where any is right."""
    _right: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a chain was right on questions of a domain."""

    async def look(self, sample: Sample) -> None:
        """Ask the workers, then try the other chains: first those that were right on questions of its kind."""
        singles = [name for name, chain in self.chains.items() if len(chain.steps) == 1]
        for name in singles:
            score = self.alone[name][sample.id] = await self._score(sample, name)
            self._note(sample, name, score)
        others = [name for name in self.chains if name not in singles]
        for name in sorted(others, key=lambda name: -self._right[sample.domain, name]):
            if sample.id in self.found:
                return
            self._note(sample, name, await self._score(sample, name))

    def _note(self, sample: Sample, name: str, score: Score) -> None:
        if score.right:
            self.found.setdefault(sample.id, name)
            self._right[sample.domain, name] += 1

    async def _score(self, sample: Sample, name: str) -> Score:
        try:
            trace = await self.conductor.run(sample.question, workflow=self.chains[name])
        except RunError as error:
            return Score(value=0.0, answer=None, explanation=str(error))
        return await self.task.score(sample, trace.text)


async def searched(task: Task, cache: Path, threads: int, console: Console) -> Search:
    """The search, one question after the other: the machine is small."""
    memory = Memory(cache)
    pool = SmallPool(threads=threads).build(memory)
    oracle = read_settings(RECIPE).systems["oracle"]
    assert isinstance(oracle, Oracle)
    search = Search(Conductor(ScriptedModel("no plan is ever asked for"), pool), task, oracle.workflows(pool))
    began = time.monotonic()
    try:
        for number, sample in enumerate(task.samples):
            await search.look(sample)
            told = f"{number + 1:3} {time.monotonic() - began:6.0f} s  {sample.domain:28} {sample.answer:14}"
            console.print(f"{told} {search.found.get(sample.id, '-')}", highlight=False, soft_wrap=True)
    finally:
        await memory.aclose()
    return search


def report(search: Search) -> Table:
    """Accuracy by depth, with standard errors."""
    samples = search.task.samples
    depths = sorted({sample.depth for sample in samples if sample.depth is not None})
    table = Table(title=f"{search.task.name}, n = {len(samples)}")
    for column in ("system", "all", *(f"depth {depth}" for depth in depths)):
        table.add_column(column, justify="left" if column == "system" else "right")
    rows = {worker: {name: score.value for name, score in scores.items()} for worker, scores in search.alone.items()}
    rows[f"oracle: any of {len(search.chains)} chains"] = {one.id: float(one.id in search.found) for one in samples}
    for name, row in rows.items():
        cells = [_cell([row[one.id] for one in samples if depth in (None, one.depth)]) for depth in (None, *depths)]
        table.add_row(name, *cells)
    return table


def _cell(values: list[float]) -> str:
    average, error = mean([Score(value=value, answer=None, explanation="") for value in values])
    return f"{average:.2f} ± {error:.2f}"


def keep(search: Search, reworded: Sequence[Task], path: Path) -> None:
    """Write the right plans, one a line, as `warm_start.plans` reads them.

    Args:
        search: what was found.
        reworded: the same questions put in other ways. What to do does not depend on words, so each plan is also kept
            for these.
        path: where to.
    """
    ways: dict[str, list[str]] = defaultdict(list)
    for task in (search.task, *reworded):
        for sample in task.samples:
            if sample.id in search.found and sample.question not in ways[sample.id]:
                ways[sample.id].append(sample.question)
    plans = {name: search.chains[chain].model_dump(mode="json") for name, chain in search.found.items()}
    lines = [
        json.dumps({"question": question, "workflow": plans[name], "score": 1.0})
        for name, questions in ways.items()
        for question in questions
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def references(search: Search) -> list[Reference]:
    """How well the worker that is best on average does on each question, and the oracle."""
    best = max(search.alone.values(), key=lambda scores: sum(score.value for score in scores.values()))
    return [
        Reference(id=sample.id, single=best[sample.id].value, oracle=float(sample.id in search.found))
        for sample in search.task.samples
    ]


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--split", default="train", choices=("train", "validation", "heldout"))
    asked.add_argument("--size", type=int, default=48)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--depths", type=int, nargs="+", default=(1, 2, 3, 4), metavar="DEPTH")
    asked.add_argument("--wordings", type=int, default=1, help="ways to put the same thing")
    asked.add_argument("--contrasts", action="store_true", help="ask everything for figures and for words")
    asked.add_argument("--cache", type=Path, default=Path("composite-replies.sqlite"))
    asked.add_argument("--plans", type=Path, help="keep the right plans here")
    asked.add_argument("--reworded", type=int, default=1, help="ways to put the question of a plan that is kept")
    asked.add_argument("--references", type=Path, help="keep there what `references` of a training file names")
    asked.add_argument("--threads", type=int, default=1, help="of the model; more than idle cores is slower")
    given = asked.parse_args()
    console = Console()
    put = partial(
        composite,
        given.split,
        size=given.size,
        seed=given.seed,
        depths=tuple(given.depths),
        contrasts=given.contrasts,
    )
    task = put(wordings=given.wordings)
    search = asyncio.run(searched(task, given.cache, given.threads, console))
    console.print(report(search))
    if given.plans:
        reworded = [put(wordings=ways) for ways in range(2, given.reworded + 1)]
        keep(search, reworded, given.plans)
    if given.references:
        write_lines(given.references, references(search))


if __name__ == "__main__":
    main()
