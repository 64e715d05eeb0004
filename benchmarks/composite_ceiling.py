"""Measures each worker alone and the oracle on the composite questions: the range that training can gain.

Run with `uv run python benchmarks/composite_ceiling.py --size 48`. It runs the small pool's models in process, with the
usual executor, and spends nothing. Replies are cached in `--cache`, so a second run takes seconds. `--plans` writes the
right plans of the search, for the warm start of a training; `--references` writes the scores of the best worker and the
oracle on each question, which a training is compared with.
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
from rl_conductor._internal.jsonl import write_lines
from rl_conductor.scoring import Sample, Score, Task, mean
from rl_conductor_training.bench.settings import read_settings
from rl_conductor_training.bench.systems.oracle import Oracle
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.train.rewards.metrics import Reference
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache

RECIPE = Path(__file__).parents[1] / "recipes" / "bench-small.toml"
"""Bench file whose oracle lists the workflows to search, short ones first."""


@dataclass
class Search:
    """Runs every worker on every question, and searches the first right chain for each question."""

    conductor: Conductor
    task: Task
    chains: dict[str, Workflow]
    """Workflows to try, by name."""
    worker_scores: dict[str, dict[str, Score]] = field(default_factory=lambda: defaultdict(dict))
    """Scores of single workers, by worker and sample id."""
    chain_names: dict[str, str] = field(default_factory=dict)
    """Name of the first right chain by sample id, where there is one."""
    _right_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of right answers by domain and chain."""

    async def search_sample(self, sample: Sample) -> None:
        """Runs the workers, then tries the other chains, most successful in this domain first."""
        singles = [name for name, chain in self.chains.items() if len(chain.steps) == 1]
        for name in singles:
            score = self.worker_scores[name][sample.id] = await self._score(sample, name)
            self._record(sample, name, score)
        others = [name for name in self.chains if name not in singles]
        for name in sorted(others, key=lambda name: -self._right_counts[sample.domain, name]):
            if sample.id in self.chain_names:
                return
            self._record(sample, name, await self._score(sample, name))

    def _record(self, sample: Sample, name: str, score: Score) -> None:
        if score.right:
            self.chain_names.setdefault(sample.id, name)
            self._right_counts[sample.domain, name] += 1

    async def _score(self, sample: Sample, name: str) -> Score:
        try:
            trace = await self.conductor.run(sample.question, workflow=self.chains[name])
        except RunError as error:
            return Score(value=0.0, answer=None, explanation=str(error))
        return await self.task.score(sample, trace.text)


async def run_search(task: Task, cache: Path, threads: int, console: Console) -> Search:
    """Runs the search, one question after the other."""
    replies = ReplyCache(cache)
    pool = SmallPool(threads=threads).build(replies)
    oracle = read_settings(RECIPE).systems["oracle"]
    assert isinstance(oracle, Oracle)
    search = Search(Conductor(ScriptedModel("no plan is ever asked for"), pool), task, oracle.workflows(pool))
    start = time.monotonic()
    try:
        for number, sample in enumerate(task.samples):
            await search.search_sample(sample)
            progress = f"{number + 1:3} {time.monotonic() - start:6.0f} s  {sample.domain:28} {sample.answer:14}"
            console.print(f"{progress} {search.chain_names.get(sample.id, '-')}", highlight=False, soft_wrap=True)
    finally:
        await replies.aclose()
    return search


def report(search: Search) -> Table:
    """Builds a table of accuracy by depth, with standard errors."""
    samples = search.task.samples
    depths = sorted({sample.depth for sample in samples if sample.depth is not None})
    table = Table(title=f"{search.task.name}, n = {len(samples)}")
    for column in ("system", "all", *(f"depth {depth}" for depth in depths)):
        table.add_column(column, justify="left" if column == "system" else "right")
    rows = {
        worker: {name: score.value for name, score in scores.items()} for worker, scores in search.worker_scores.items()
    }
    rows[f"oracle: any of {len(search.chains)} chains"] = {
        sample.id: float(sample.id in search.chain_names) for sample in samples
    }
    for name, row in rows.items():
        cells = [
            _cell([row[sample.id] for sample in samples if depth in (None, sample.depth)]) for depth in (None, *depths)
        ]
        table.add_row(name, *cells)
    return table


def _cell(values: list[float]) -> str:
    average, error = mean([Score(value=value, answer=None, explanation="") for value in values])
    return f"{average:.2f} ± {error:.2f}"


def write_plans(search: Search, reworded: Sequence[Task], path: Path) -> None:
    """Writes the right plans as JSON Lines for `warm_start.plans`.

    Args:
        search: the finished search.
        reworded: the same questions in other wordings, for which the same plans are right.
        path: the file to write.
    """
    questions_by_id: dict[str, list[str]] = defaultdict(list)
    for task in (search.task, *reworded):
        for sample in task.samples:
            if sample.id in search.chain_names and sample.question not in questions_by_id[sample.id]:
                questions_by_id[sample.id].append(sample.question)
    plans = {name: search.chains[chain].model_dump(mode="json") for name, chain in search.chain_names.items()}
    lines = [
        json.dumps({"question": question, "workflow": plans[name], "score": 1.0})
        for name, questions in questions_by_id.items()
        for question in questions
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def references(search: Search) -> list[Reference]:
    """Returns the scores of the best worker on average and of the oracle on each question."""
    best = max(search.worker_scores.values(), key=lambda scores: sum(score.value for score in scores.values()))
    return [
        Reference(id=sample.id, single=best[sample.id].value, oracle=float(sample.id in search.chain_names))
        for sample in search.task.samples
    ]


def main() -> None:
    """Runs the measurement and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="train", choices=("train", "validation", "heldout"))
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depths", type=int, nargs="+", default=(1, 2, 3, 4), metavar="DEPTH")
    parser.add_argument("--wordings", type=int, default=1, help="maximum number of wordings of each text")
    parser.add_argument("--contrasts", action="store_true", help="ask everything for figures and for words")
    parser.add_argument("--cache", type=Path, default=Path("composite-replies.sqlite"))
    parser.add_argument("--plans", type=Path, help="write the right plans to this file")
    parser.add_argument("--reworded", type=int, default=1, help="number of wordings to write for each plan")
    parser.add_argument("--references", type=Path, help="write the `references` of a training file")
    parser.add_argument("--threads", type=int, default=1, help="threads of the model, at most the idle cores")
    args = parser.parse_args()
    console = Console()
    generate = partial(
        composite,
        args.split,
        size=args.size,
        seed=args.seed,
        depths=tuple(args.depths),
        contrasts=args.contrasts,
    )
    task = generate(wordings=args.wordings)
    search = asyncio.run(run_search(task, args.cache, args.threads, console))
    console.print(report(search))
    if args.plans:
        reworded = [generate(wordings=wordings) for wordings in range(2, args.reworded + 1)]
        write_plans(search, reworded, args.plans)
    if args.references:
        write_lines(args.references, references(search))


if __name__ == "__main__":
    main()
