"""What composition can gain on the composite questions, before any training: each worker, fixed workflows, the oracle.

Run with `uv run python benchmarks/composite_ceiling.py --size 48`. It asks the small pool's real models in process, by
the same executor as everything else, and spends nothing. Replies are kept in `--cache`, so a second run takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict

from rich.console import Console
from rich.table import Table

from rl_conductor import Conductor, RunError, ScriptedModel, Step, Workflow, model
from rl_conductor.retrieval import Library
from rl_conductor.tasks.base import Sample, Score, Task, mean
from rl_conductor.tasks.composite import composite
from rl_conductor.tasks.islands import islands
from rl_conductor.workers.small import small_pool

SUBTASKS = {
    "reader": "State the facts about the town or ship from the library. Do not calculate.",
    "hop": "Look up the town or ship that the task names, and name its twin town or home port.",
    "coder": "Calculate the number that the task asks for from the facts above. Print it in figures.",
    "writer": "Write the resulting number in English words in lower case, such as forty-two, and nothing else.",
}
SHAPES = (
    *(("reader",), ("coder",), ("writer",)),
    *(("reader", "coder"), ("reader", "writer"), ("coder", "writer")),
    *(("reader", "coder", "writer"), ("hop", "reader", "coder"), ("hop", "reader", "coder", "writer")),
)
"""The workflows that are searched; each step sees all earlier ones. A single worker is just given the question."""


def workflow(shape: tuple[str, ...]) -> Workflow:
    """The workflow of that shape."""
    if len(shape) == 1:
        return Workflow(steps=(Step(subtask="Answer the question.", worker=shape[0]),))
    return Workflow(
        steps=tuple(
            Step(subtask=SUBTASKS[role], worker="reader" if role == "hop" else role, access=frozenset(range(index)))
            for index, role in enumerate(shape)
        )
    )


async def ask(conductor: Conductor, task: Task, sample: Sample, shape: tuple[str, ...]) -> Score:
    """The score of one workflow on one question; a run without an answer is wrong."""
    try:
        trace = await conductor.run(sample.question, workflow=workflow(shape))
    except RunError as error:
        return Score(value=0.0, answer=None, explanation=str(error))
    return await task.score(sample, trace.text)


Scores = dict[tuple[str, ...], dict[str, Score]]


async def measure(task: Task, cache: str, threads: int, console: Console) -> Scores:
    """Every workflow on every question, one after the other: the machine is small."""
    small, large = (model(f"embedded:qwen2.5-coder-{size}", threads=threads) for size in ("0.5b", "1.5b"))
    pool = small_pool(Library(islands().passages), reader=small, coder=large, writer=large, cache=cache)
    conductor = Conductor(ScriptedModel("no plan is ever asked for"), pool)
    scores: Scores = defaultdict(dict)
    began = time.monotonic()
    try:
        for number, sample in enumerate(task.samples):
            for shape in SHAPES:
                scores[shape][sample.id] = await ask(conductor, task, sample, shape)
            right = [" ".join(shape) for shape in SHAPES if scores[shape][sample.id].right]
            told = f"{number + 1:3} {time.monotonic() - began:6.0f} s  {sample.domain:30} {sample.answer:14}"
            console.print(f"{told} {', '.join(right) or '-'}", highlight=False)
    finally:
        await conductor.aclose()
    return scores


def report(task: Task, scores: Scores) -> Table:
    """Accuracy by depth, with standard errors."""
    depths = sorted({sample.depth for sample in task.samples if sample.depth is not None})
    table = Table(title=f"{task.name}, n = {len(task.samples)}")
    for column in ("system", "all", *(f"depth {depth}" for depth in depths)):
        table.add_column(column, justify="left" if column == "system" else "right")
    by_kind = {kind: max(SHAPES, key=lambda shape: _value(task, scores[shape], kind)) for kind in _kinds(task)}
    best = max(SHAPES, key=lambda shape: mean(list(scores[shape].values()))[0])
    rows = {" → ".join(shape): scores[shape] for shape in SHAPES}
    rows[f"best fixed ({' → '.join(best)})"] = scores[best]
    rows["oracle: best for its kind"] = {s.id: scores[by_kind[s.domain]][s.id] for s in task.samples}
    rows["upper bound: any of them right"] = {
        s.id: max((scores[shape][s.id] for shape in SHAPES), key=lambda score: score.value) for s in task.samples
    }
    for name, row in rows.items():
        cells = [_cell([row[s.id] for s in task.samples if depth in (None, s.depth)]) for depth in (None, *depths)]
        table.add_row(name, *cells)
    return table


def _kinds(task: Task) -> set[str]:
    return {sample.domain for sample in task.samples}


def _value(task: Task, row: dict[str, Score], kind: str) -> float:
    return sum(row[sample.id].value for sample in task.samples if sample.domain == kind)


def _cell(scores: list[Score]) -> str:
    average, error = mean(scores)
    return f"{average:.2f} ± {error:.2f}"


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--split", default="train", choices=("train", "validation", "heldout"))
    asked.add_argument("--size", type=int, default=48)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--cache", default="composite-replies.sqlite")
    asked.add_argument("--threads", type=int, default=1, help="for each model; more than idle cores is slower")
    given = asked.parse_args()
    console = Console()
    task = composite(split=given.split, size=given.size, seed=given.seed)
    console.print(report(task, asyncio.run(measure(task, given.cache, given.threads, console))))


if __name__ == "__main__":
    main()
