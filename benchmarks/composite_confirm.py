"""Scores the adapters that `composite_cards.py` trained on another table of held-out questions.

Run with `uv run python benchmarks/composite_confirm.py --train train.jsonl --rewards rewards.jsonl --out FOLDER
--heldout heldout.jsonl --heldout-seed 9`, on a table of `composite_table.py --split heldout --size 144 --seed 9`. The
adapters are those after the last step of each method, so the questions of the table select nothing. The evaluation of
each adapter is stored beside it, so that the next call continues. No worker is called. It prints the mean over the
seeds of each method, the baselines, and all differences.

With `--cache`, the file of replies that `composite_table.py` wrote, it compares the greedy plans only, and runs those
that are not in the table with the workers of the small pool, instead of counting them as wrong.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import torch
from composite_cards import BASE, add_table_arguments, baselines, order_workers, permute, read_training, run_plan
from composite_weights import MAX_STEPS, build_prompt, complete_part
from peft import PeftModel
from rich.console import Console

from rl_conductor import Conductor, Limits, ScriptedModel, Workflow
from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.scoring import Sample, Task
from rl_conductor.types import Value
from rl_conductor_training.statistics import estimate, mean_difference
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.train.policy.model_loading import load_base_model
from rl_conductor_training.train.reward_table.policy import (
    BATCH,
    EncodedQuestion,
    Evaluation,
    PlanReader,
    encode_questions,
    evaluate_policy,
)
from rl_conductor_training.train.reward_table.table import TableQuestion
from rl_conductor_training.train.reward_table.training import SUPERVISED
from rl_conductor_training.train.run_dir import latest_complete_checkpoint
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache


class GreedyRuns(Value):
    """The greedy plan of an adapter for each question, and its score."""

    plans: tuple[Workflow | None, ...]
    """`None` for an invalid one."""
    scores: tuple[float, ...]
    """From the table, or from a run with the workers; 0 for an invalid plan."""
    in_table: int


def last_adapter(folder: Path, method: str) -> Path:
    """Returns the folder of the adapter after the last step of a method."""
    if method.startswith(f"{SUPERVISED}-"):
        return folder / "controls" / method / SUPERVISED / "final"
    if method == SUPERVISED:
        return folder / SUPERVISED / SUPERVISED / "final"
    checkpoint = latest_complete_checkpoint(folder / method / method)
    assert checkpoint is not None, f"{folder / method} has no checkpoint"
    return checkpoint


def evaluate_adapter(adapter: Path, questions: Sequence[TableQuestion], file: Path, dtype: str) -> Evaluation:
    """Evaluates an adapter, or reads its stored evaluation."""
    if file.exists():
        return read_value(file, Evaluation)
    model, encoded, reader = load_adapter(adapter, questions, dtype)
    evaluation = evaluate_policy(model, encoded, reader)
    assert evaluation is not None
    write_value(file, evaluation)
    return evaluation


def load_adapter(
    adapter: Path, questions: Sequence[TableQuestion], dtype: str
) -> tuple[PeftModel, list[EncodedQuestion], PlanReader]:
    """Loads an adapter, and encodes the questions for it."""
    prompt, loaded = build_prompt(BASE, roster="anonymous"), load_base_model(BASE, dtype=dtype)
    reader = PlanReader(loaded, loaded.compile_grammar(prompt.space, prompt.settings.form))
    model = PeftModel.from_pretrained(loaded.model, adapter)
    torch.manual_seed(0)
    return model, encode_questions(questions, prompt, loaded), reader


def greedy_plans(model: PeftModel, encoded: Sequence[EncodedQuestion], reader: PlanReader) -> list[Workflow | None]:
    """Returns the greedy plan of an adapter for each question; `None` for an invalid one."""
    batches = (encoded[start : start + BATCH] for start in range(0, len(encoded), BATCH))
    return [plan for batch in batches for plan in reader.greedy_plans(model, batch)]


def run_adapter(
    adapter: Path,
    questions: Sequence[TableQuestion],
    task: Task,
    file: Path,
    *,
    dtype: str,
    cache: Path,
    has_table: bool = True,
    pool: SmallPool | None = None,
) -> GreedyRuns:
    """Scores the greedy plans of an adapter, or reads the stored scores.

    Plans that are not in the table are run with the workers of `pool`, by default the small pool's; without
    `has_table`, all are.
    """
    if file.exists():
        return read_value(file, GreedyRuns)
    plans = greedy_plans(*load_adapter(adapter, questions, dtype))
    known = [question.score(plan) if has_table else None for question, plan in zip(questions, plans, strict=True)]
    scores = asyncio.run(run_others(plans, known, questions, task, cache, pool or SmallPool()))
    runs = GreedyRuns(plans=tuple(plans), scores=tuple(scores), in_table=len(known) - known.count(None))
    write_value(file, runs)
    return runs


async def run_others(
    plans: Sequence[Workflow | None],
    known: Sequence[float | None],
    questions: Sequence[TableQuestion],
    task: Task,
    cache: Path,
    pool: SmallPool,
) -> list[float]:
    """Runs the plans without a known score, and returns the scores of all; an invalid plan scores 0."""
    replies = ReplyCache(cache)
    workers = pool.build(replies)

    async def score(plan: Workflow | None, question: TableQuestion, sample: Sample) -> float:
        if plan is None:
            return 0.0
        planner, ordered = ScriptedModel("no plan is ever asked for"), order_workers(workers, question)
        return await run_plan(Conductor(planner, ordered, limits=Limits(steps=MAX_STEPS)), plan, sample, task)

    try:
        return [
            await score(plan, question, sample) if value is None else value
            for plan, value, question, sample in zip(plans, known, questions, task.samples, strict=True)
        ]
    finally:
        await replies.aclose()


def mean_scores(scores: Sequence[Sequence[float]]) -> list[float]:
    """Returns the mean score of each question over the trainings."""
    return [sum(column) / len(column) for column in zip(*scores, strict=True)]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_table_arguments(parser)
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["supervised", "raft", "supervised-more", "supervised-all"])
    parser.add_argument("--cache", type=Path, help="replies of the workers; plans that the table lacks are run with it")
    parser.add_argument("--dtype", default="bfloat16", help="float32 where the processor has no bfloat16 instructions")
    return parser.parse_args()


def evaluate_method(
    method: str, questions: Sequence[TableQuestion], args: argparse.Namespace, console: Console
) -> list[Evaluation]:
    """Evaluates the adapters of one method, one for each seed."""
    found: list[Evaluation] = []
    for seed in args.seed:
        folder = args.out / f"seed-{seed}"
        file = folder / f"{method}-on-heldout-{args.heldout_seed}.json"
        found.append(evaluate_adapter(last_adapter(folder, method), questions, file, args.dtype))
        line = f"{method}, training {seed}: greedy {found[-1].greedy:.2f}, sampled {found[-1].expected:.2f}"
        console.print(line, highlight=False)
    return found


def run_method(
    method: str, questions: Sequence[TableQuestion], task: Task, args: argparse.Namespace, console: Console
) -> list[GreedyRuns]:
    """Runs the greedy plans of the adapters of one method, one for each seed."""
    found: list[GreedyRuns] = []
    for seed in args.seed:
        folder = args.out / f"seed-{seed}"
        file = folder / f"{method}-runs-on-heldout-{args.heldout_seed}.json"
        found.append(
            run_adapter(last_adapter(folder, method), questions, task, file, dtype=args.dtype, cache=args.cache)
        )
        runs = found[-1]
        line = (
            f"{method}, training {seed}: {sum(runs.scores) / len(runs.scores):.2f} right, {runs.in_table} in the table"
        )
        console.print(f"{line}, {runs.plans.count(None)} invalid", highlight=False)
    return found


def print_comparisons(kind: str, scores: dict[str, list[float]], groups: Sequence[str], console: Console) -> None:
    """Prints each system with its clustered error, and the differences between any two."""
    for name, values in scores.items():
        mean = estimate(values, groups)
        console.print(f"{kind}: {name} {mean.value:.2f} ± {mean.error or 0:.2f}", highlight=False)
    for one, other in combinations(scores, 2):
        gap = mean_difference(scores[other], scores[one], groups)
        line = f"{kind}: {other} against {one} {gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f}), p = {gap.p:.3f}"
        console.print(line, highlight=False, soft_wrap=True)


def main() -> None:
    """Runs the missing evaluations and prints the results."""
    args, console = parse_arguments(), Console()
    task = composite("heldout", size=args.heldout_size, seed=args.heldout_seed, templates=args.heldout_templates)
    part = complete_part(task.samples, args.heldout)
    questions = permute(part.questions, "heldout", 1, heldout=True)
    train, more = read_training(args)
    learned = permute([*train, *more], "train 0", copies=4, heldout=False)
    by_number, by_name = (baselines(learned, questions, numbered=numbered) for numbered in (True, False))
    greedy = {**by_number, **by_name, "oracle": [max(plan.score for plan in question.plans) for question in questions]}
    preferred, sampled = dict[str, list[float]](), dict[str, list[float]]()
    for method in args.methods:
        if args.cache is not None:
            greedy[method] = mean_scores([runs.scores for runs in run_method(method, questions, task, args, console)])
            continue
        evaluations = evaluate_method(method, questions, args, console)
        greedy[method] = mean_scores([evaluation.greedy_scores for evaluation in evaluations])
        preferred[method] = mean_scores([evaluation.preferred_scores for evaluation in evaluations])
        sampled[method] = mean_scores([evaluation.expected_scores for evaluation in evaluations])
    print_comparisons("greedy", greedy, part.groups, console)
    print_comparisons("best of the table", preferred, part.groups, console)
    print_comparisons("sampled", sampled, part.groups, console)


if __name__ == "__main__":
    main()
