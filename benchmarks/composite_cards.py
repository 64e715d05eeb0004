"""Compares supervised steps, policy gradients and RAFT where only the workers' cards tell which number does what.

Run with `uv run python benchmarks/composite_cards.py --train train.jsonl --heldout heldout.jsonl --out FOLDER`, on the
tables of `composite_table.py --split train --size 48 --wordings 5` and `--split heldout --size 36 --seed 3`, or with
another seed if `--heldout-seed` names it. Each question lists the workers in an order of its own. Training has the
wordings of cards in `recipes/composite.toml`; the held-out questions have the wordings below, which no training
contains. No worker is called, and nothing is selected on the held-out questions: each training is evaluated after its
last step. With `--rewards`, a table of other training questions (`composite_table.py --split train --size 160 --seed 1
--wordings 5 --contrasts`), the supervised steps learn from the first table alone, and the methods from both;
`supervised-more` and `supervised-all` then make `--control-steps` more supervised steps, on the first table and on
both. `--published` also scores the planner that comes with the package, and `--model embedded:conductor-135m`
trains it on by the methods, without supervised steps.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from composite_weights import MAX_STEPS, MAX_TOKENS, build_prompt, complete_part, print_results, train_method
from permuted_workers import permute_workers
from rich.console import Console

from rl_conductor import Conductor, Limits, Planner, Sampling, Workflow
from rl_conductor.models import model
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample, Task
from rl_conductor.text.features import text_features
from rl_conductor_training.routing.selector import train_selector
from rl_conductor_training.tasks.composite.questions import TemplateSet, composite
from rl_conductor_training.train.config import read_config
from rl_conductor_training.train.reward_table.table import TableQuestion, TableSettings
from rl_conductor_training.train.reward_table.training import SUPERVISED, TableData, TableTraining
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache

RECIPE = Path(__file__).parents[1] / "recipes" / "composite.toml"
BASE, PUBLISHED = "embedded:smollm2-135m", "embedded:conductor-135m"
HELDOUT_SEED = 3
HELDOUT_CARDS = {
    "reader": (
        "a librarian: fetches the entry that was asked for",
        "knows the gazetteer by heart, town by town and ship by ship",
        "answers what something or somebody is, from files; no mathematics",
    ),
    "coder": (
        "evaluates expressions on a computer, to the last digit",
        "an accountant with a spreadsheet: adds, multiplies and divides",
        "crunches numbers exactly, but has never read a book",
    ),
    "writer": (
        "a typist who renders numerals as English text",
        "says any figure in plain English",
        "fills in cheques: the amount in letters",
    ),
}


def permute(questions: Sequence[TableQuestion], seed: str, copies: int, *, heldout: bool) -> list[TableQuestion]:
    """Permutes the workers of each question, `copies` times."""
    config = read_config(RECIPE)
    assert config.warm_start is not None
    cards = build_prompt(BASE, roster="anonymous").cards
    own = {card.name: (card.strengths, *config.curriculum.cards[card.name]) for card in cards}
    return [
        permute_workers(
            question,
            cards,
            wordings=HELDOUT_CARDS if heldout else own,
            roles=config.warm_start.roles,
            rng=random.Random(f"{seed} {copy} {question.id}"),
        )
        for copy in range(copies)
        for question in questions
    ]


def by_number(workflow: Workflow, question: TableQuestion) -> Workflow:
    """Replaces the names of the workers by their numbers in the question's prompt."""
    numbers = {card.name: str(number) for number, card in enumerate(question.cards)}
    steps = [step.model_copy(update={"worker": numbers[step.worker]}) for step in workflow.steps]
    return workflow.model_copy(update={"steps": tuple(steps)})


def score_tables(questions: Sequence[TableQuestion], *, numbered: bool) -> list[dict[Workflow, float]]:
    """Returns the score of each workflow on each question, with the numbers or the names of its workers."""
    return [
        {by_number(plan.workflow, question) if numbered else plan.workflow: plan.score for plan in question.plans}
        for question in questions
    ]


def baselines(
    train: Sequence[TableQuestion], heldout: Sequence[TableQuestion], *, numbered: bool
) -> dict[str, list[float]]:
    """Scores the best fixed workflow and the linear classifier on held-out questions, both learned on training.

    Args:
        train: the training questions.
        heldout: the questions to answer.
        numbered: whether they know workers by their numbers only, as a planner does that can't read cards.
    """
    tables, tests = (score_tables(questions, numbered=numbered) for questions in (train, heldout))
    workflows = sorted({workflow for table in tables for workflow in table}, key=lambda w: (len(w.steps), repr(w)))
    right = [[table.get(workflow, 0.0) == 1 for table in tables] for workflow in workflows]
    fixed = workflows[max(range(len(workflows)), key=lambda index: sum(right[index]))]
    selector = train_selector([text(question) for question in train], workflows, right)
    chosen = [
        max(zip(workflows, selector.scores, strict=True), key=lambda pair: pair[1].score(features))[0]
        for features in (text_features(text(question)) for question in heldout)
    ]
    kind = "by number" if numbered else "by name"
    return {
        f"best fixed, {kind}": [table.get(fixed, 0.0) for table in tests],
        f"linear, {kind}": [table.get(workflow, 0.0) for table, workflow in zip(tests, chosen, strict=True)],
    }


def order_workers(workers: WorkerPool, question: TableQuestion) -> WorkerPool:
    """Returns the workers in the order and with the cards of a question."""
    return WorkerPool(replace(workers[card.name], card=card) for card in question.cards)


async def run_plan(conductor: Conductor, plan: Workflow | None, sample: Sample, task: Task) -> float:
    """Runs a plan with the real workers and scores its answer; without a plan, one is written first."""
    result = await conductor.run(sample.question, workflow=plan)
    return (await task.score(sample, result.text)).value


async def score_published(
    questions: Sequence[TableQuestion], samples: Sequence[Sample], task: Task, console: Console
) -> list[float]:
    """Scores the greedy plans of the published planner: by the table, or, if a plan is not in it, by running it."""
    planner = Planner(
        model=model(PUBLISHED, threads=1),
        form="lists",
        roster="anonymous",
        examples=0,
        sampling=Sampling(max_tokens=MAX_TOKENS, temperature=0.0),
    )
    replies = ReplyCache(None)
    workers = SmallPool().build(replies)
    scores: list[float] = []
    in_table = 0
    for question, sample in zip(questions, samples, strict=True):
        conductor = Conductor(planner, order_workers(workers, question), limits=Limits(steps=MAX_STEPS))
        plan = (await conductor.plan(text(question))).workflow
        known = question.score(plan)
        in_table += known is not None
        scores.append(await run_plan(conductor, plan, sample, task) if known is None else known)
    await replies.aclose()
    console.print(f"{PUBLISHED}: {in_table} of the {len(scores)} greedy plans are in the table", highlight=False)
    return scores


def continue_supervised(
    data: TableData, settings: TableSettings, folder: Path, name: str, console: Console
) -> TableTraining:
    """Makes more supervised steps after those of the method `supervised` in `folder`, which must be trained."""
    control = folder / "controls" / name  # where no method looks for the supervised steps that it begins with
    if not control.exists():
        start = folder / SUPERVISED / SUPERVISED
        shutil.copytree(start, control / SUPERVISED, ignore=shutil.ignore_patterns("final"))
    return train_method(data, settings, control, console)


def read_training(args: argparse.Namespace) -> tuple[list[TableQuestion], list[TableQuestion]]:
    """Reads the questions that the supervised steps learn from, and those that only the methods learn from."""
    questions = complete_part(composite("train", size=48, wordings=5).samples, args.train).questions
    if args.rewards is None:
        return questions, []
    is_usual = args.rewards_templates == "usual"
    unseen = composite(
        "train",
        size=args.rewards_size,
        seed=1,
        wordings=5 if is_usual else 1,
        contrasts=is_usual,
        templates=args.rewards_templates,
    )
    return questions, complete_part(unseen.samples, args.rewards).questions


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the tables of training and held-out questions."""
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--rewards", type=Path, help="table that the supervised steps don't learn from")
    parser.add_argument("--rewards-size", type=int, default=160)
    parser.add_argument("--rewards-templates", default="usual", choices=get_args(TemplateSet))
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--heldout-seed", type=int, default=HELDOUT_SEED)
    parser.add_argument("--heldout-size", type=int, default=36)
    parser.add_argument("--heldout-templates", default="usual", choices=get_args(TemplateSet))
    parser.add_argument("--out", type=Path, required=True, help="folder of the trainings")


def text(question: TableQuestion) -> str:
    """Returns the text of a question."""
    return question.conversation[-1].text


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_table_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--copies", type=int, default=4, help="orders of the workers for each training question")
    parser.add_argument("--methods", nargs="*", default=["supervised", "expectation", "raft"])
    parser.add_argument("--model", default=BASE, help=f"with {PUBLISHED} its own adapter is trained on")
    parser.add_argument("--dtype", default="bfloat16", help="float32 where the processor has no bfloat16 instructions")
    parser.add_argument("--published", action="store_true", help="score the published planner too")
    parser.add_argument("--supervised-steps", type=int, default=60)
    parser.add_argument("--control-steps", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def settings_of(args: argparse.Namespace, name: str) -> TableSettings:
    """Returns the settings of a method, or of a control of the supervised steps."""
    method, _, control = name.partition("-")
    return TableSettings(
        model=args.model,
        dtype=args.dtype,
        seed=args.seed,
        method=method,
        supervised_steps=args.supervised_steps + (args.control_steps if control else 0),
        steps=args.steps,
        evaluate_every=args.steps,
        replay=0,
        targets=r".*\.layers\.[12][0-9]\..*_proj",
    )


def main() -> None:
    """Trains the missing adapters and prints the results."""
    args, console = parse_arguments(), Console()
    train, more = read_training(args)
    task = composite("heldout", size=args.heldout_size, seed=args.heldout_seed, templates=args.heldout_templates)
    heldout = complete_part(task.samples, args.heldout)
    first = TableData(
        permute(train, f"train {args.seed}", args.copies, heldout=False),
        permute(heldout.questions, "heldout", 1, heldout=True),
        build_prompt(BASE, roster="anonymous"),
    )
    data = replace(first, train=permute([*train, *more], f"train {args.seed}", args.copies, heldout=False))
    console.print(f"{len(data.train)} training and {len(data.validation)} held-out prompts", highlight=False)
    results = {
        name: scores
        for numbered in (True, False)
        for name, scores in baselines(data.train, data.validation, numbered=numbered).items()
    }
    results["oracle"] = [max(plan.score for plan in question.plans) for question in data.validation]
    if args.published:
        results[PUBLISHED] = asyncio.run(score_published(data.validation, heldout.samples, task, console))
    folder = args.out / f"seed-{args.seed}"
    for name in args.methods:
        source = first if name in (SUPERVISED, "supervised-more") else data
        if name.startswith(f"{SUPERVISED}-"):
            state = continue_supervised(source, settings_of(args, name), folder, name, console)
        else:
            state = train_method(source, settings_of(args, name), folder / name, console)
        validated = state.curve[-1].validation
        results[name] = list(validated.greedy_scores)
        results[f"{name}, sampled"] = list(validated.expected_scores)
    print_results(results, heldout.groups, console)


if __name__ == "__main__":
    main()
