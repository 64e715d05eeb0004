"""Trains a planner by supervised steps on many generated questions, whose right plans follow from their templates.

Run with `uv run python benchmarks/composite_generated.py few many compositions --out FOLDER`. The plan of a question is
the chain of its skills, so no worker is called, and nothing is spent. `few` has the 48 training questions of the
published planner, each in four orders of the workers; `many` has 480 questions in five wordings and 480 in the 48
templates of four voices, each in one order; and `compositions` also has 240 questions about the twin towns of related
towns, whose chains no held-out question has. All make the same number of steps. They are evaluated after the last step,
by the share of greedy plans that are the chain of the question's skills, on questions that no training has. Sums over
two ships are left out, because no chain of these subtasks fits them. `published` is the planner of the package.

With `--answers`, a file for the replies of the workers, the greedy plans are run with the small pool instead, on the
questions of `composite_confirm.py` in new wordings and on the handwritten ones, and their answers scored. `--coder` is
another model for the coder of the pool.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from composite_cards import BASE, PUBLISHED, permute
from composite_confirm import load_adapter, run_adapter
from composite_weights import build_prompt
from rich.console import Console

from rl_conductor import Message, Workflow
from rl_conductor.scoring import Sample, split_of
from rl_conductor_training.bench.settings import read_settings
from rl_conductor_training.bench.systems.workflow_list import WorkflowList
from rl_conductor_training.statistics import estimate
from rl_conductor_training.tasks import load_task
from rl_conductor_training.tasks.composite.islands import FACTS, fact_phrase, islands
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.tasks.composite.templates import SMALL_FACTS, SQUARE, TIMES, TRAINING
from rl_conductor_training.train.policy.gguf_adapter import from_gguf
from rl_conductor_training.train.policy.model_loading import base_folder, shipped_adapter
from rl_conductor_training.train.reward_table.policy import evaluate_policy
from rl_conductor_training.train.reward_table.table import ScoredWorkflow, TableQuestion, TableSettings
from rl_conductor_training.train.reward_table.training import SUPERVISED, TableData, train_on_table
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache
from rl_conductor_training.workers.small import SMALL_MODEL

RECIPE = Path(__file__).parents[1] / "recipes" / "bench-baselines.toml"
LOOK, HOP = "lookup", "hop"
ROLES = {LOOK: "reader", HOP: "hop", "compute": "coder", "write": "writer"}
"""Roles of the recipe by skill; `hop` is every look-up but the last one."""
SAMPLE_SEED = 21
"""Seed of generated questions, which no other experiment uses."""


def chain_of(skills: Sequence[str]) -> tuple[str, ...]:
    """Returns the chain of roles for skills in order, in which all look-ups but the last one find another entity."""
    last = max((index for index, skill in enumerate(skills) if skill == LOOK), default=0)
    return tuple(ROLES[HOP if skill == LOOK and index < last else skill] for index, skill in enumerate(skills))


def workflow_of(chain: tuple[str, ...]) -> Workflow:
    """Builds the workflow of a chain of the recipe's roles."""
    fixed = read_settings(RECIPE).systems["fixed"]
    assert isinstance(fixed, WorkflowList)
    pool = SmallPool().build(ReplyCache(None))
    return next(iter(fixed.model_copy(update={"chains": (chain,)}).workflows(pool).values()))


def questions_of(samples: Iterable[Sample], prefix: str = "") -> list[TableQuestion]:
    """Gives each question the chain of its skills as its only right plan."""
    samples = list(samples)
    chains = {sample.domain: chain_of(sample.domain.split("+")) for sample in samples}
    workflows = {domain: workflow_of(chain) for domain, chain in chains.items()}
    return [
        TableQuestion(
            id=f"{prefix}{sample.id}",
            conversation=(Message.user(sample.question),),
            plans=(ScoredWorkflow(workflow=workflows[sample.domain], score=1.0),),
        )
        for sample in samples
    ]


def twins_of_related_towns(size: int) -> list[Sample]:
    """Asks about the twin town of a twin town or home port: for its facts, in words, and in a calculation."""
    rng = random.Random("twins of related towns")
    country = islands()
    names = {
        kind: [entity.name for entity in entities if split_of(entity.name) == "train"]
        for kind, entities in (("town", country.towns), ("ship", country.ships))
    }
    samples = []
    for number in range(size):
        kind = rng.choice(("town", "ship"))
        inner = rng.choice(TRAINING.related[kind]).format(name=rng.choice(names[kind]))
        town = rng.choice(TRAINING.related["town"][:2]).format(name=inner)
        skills, texts = (
            ((), (TRAINING.facts, TRAINING.figures)),
            (("write",), (TRAINING.facts, TRAINING.words)),
            (("compute",), (rng.choice((TIMES, SQUARE)).wordings, TRAINING.figures)),
        )[number % 3]
        fact = rng.choice([fact for fact in FACTS["town"] if fact in SMALL_FACTS or skills != ("write",)])
        subject = f"the {fact_phrase(fact)} of {town}"
        numbers = {"a": rng.randint(12, 97), "b": rng.randint(11, 99), "m": rng.randint(53, 99)}
        question = " ".join(rng.choice(wordings) for wordings in texts).format(subject=subject, x=subject, **numbers)
        domain = "+".join((LOOK, LOOK, LOOK, *skills))
        samples.append(Sample(id=f"twin-{number}", question=question, answer="", domain=domain, depth=3 + len(skills)))
    return samples


def training_questions(arm: str) -> list[TableQuestion]:
    """Returns the questions of an arm, each with an order of the workers."""
    if arm == "few":
        return permute(questions_of(composite("train", size=48, wordings=5).samples), "train 0", 4, heldout=False)
    samples = [
        *composite("train", size=480, seed=SAMPLE_SEED, wordings=5, contrasts=True).samples,
        *composite("train", size=480, seed=SAMPLE_SEED, templates="new_wordings").samples,
    ]
    if arm == "compositions":
        samples += twins_of_related_towns(240)
    return permute(questions_of(samples), "train 0", 1, heldout=False)


def heldout_questions() -> dict[str, list[Sample]]:
    """Returns the held-out questions by set."""
    compositions = composite("heldout", size=72, seed=1, templates="new_compositions").samples
    return {
        "usual templates": list(composite("heldout", size=36, seed=12).samples),
        "new wordings": list(composite("heldout", size=96, seed=1, templates="new_wordings").samples),
        "handwritten": list(load_task("handwritten").samples),
        "new compositions": [sample for sample in compositions if "compute" not in sample.domain],
    }


def published_adapter(out: Path) -> Path:
    """Returns the folder of the published planner's adapter, in the form for training."""
    folder, adapter = out / PUBLISHED.partition(":")[2], shipped_adapter(PUBLISHED)
    assert adapter is not None
    if not folder.exists():
        from_gguf(adapter, folder, base=base_folder(PUBLISHED))
    return folder


def published_scores(data: TableData, args: argparse.Namespace) -> tuple[float, ...]:
    """Scores the greedy plans of the published planner."""
    evaluation = evaluate_policy(*load_adapter(published_adapter(args.out), data.validation, args.dtype))
    assert evaluation is not None
    return evaluation.greedy_scores


def trained_scores(data: TableData, arm: str, args: argparse.Namespace, console: Console) -> tuple[float, ...]:
    """Trains an arm, if that was not done before, and scores its greedy plans."""
    settings = TableSettings(
        model=BASE,
        dtype=args.dtype,
        seed=args.seed,
        method="supervised",
        supervised_steps=args.steps,
        replay=0,
        targets=r".*\.layers\.[12][0-9]\..*_proj",
    )

    def report(text: str) -> None:
        console.print(f"{arm}: {text}", highlight=False, soft_wrap=True)

    state = train_on_table(data, settings, args.out / f"seed-{args.seed}" / arm, report=report)
    return state.curve[-1].validation.greedy_scores


def print_shares(arm: str, sets: dict[str, list[Sample]], scores: Iterable[float], console: Console) -> None:
    """Prints the share of right plans or answers in each set, with its error."""
    remaining = iter(scores)
    for name, samples in sets.items():
        found = [next(remaining) for _ in samples]
        share = estimate(found, [sample.details.get("group", sample.id) for sample in samples])
        line = f"{arm:14} {name:18} n = {len(found):3}  {share.value:.2f} ± {share.error or 0:.2f}"
        console.print(line, highlight=False)


def print_plans(args: argparse.Namespace, console: Console) -> None:
    """Trains the arms and prints the share of right plans in each set."""
    sets = heldout_questions()
    questions = [question for name, samples in sets.items() for question in questions_of(samples, f"{name} ")]
    heldout = permute(questions, "heldout", 1, heldout=True)
    prompt = build_prompt(BASE, roster="anonymous")
    for arm in args.arms:
        if arm == "published":
            scores = published_scores(TableData([], heldout, prompt), args)
        else:
            scores = trained_scores(TableData(training_questions(arm), heldout, prompt), arm, args, console)
        print_shares(arm, sets, scores, console)


def print_answers(args: argparse.Namespace, console: Console) -> None:
    """Runs the greedy plans of trained arms with the workers, and prints the share of right answers in each set."""
    tasks = {
        "new wordings": composite("heldout", size=144, seed=10, templates="new_wordings"),
        "handwritten": load_task("handwritten"),
    }
    pool = SmallPool(coder=args.coder)
    suffix = "" if args.coder == SMALL_MODEL else f"-{args.coder.rpartition(':')[2]}"
    for arm in args.arms:
        folder = args.out / f"seed-{args.seed}" / arm
        adapter = published_adapter(args.out) if arm == "published" else folder / SUPERVISED / "final"
        for name, task in tasks.items():
            questions = permute(questions_of(task.samples), "heldout", 1, heldout=True)
            file = folder / f"answers-{name.replace(' ', '-')}{suffix}.json"
            runs = run_adapter(
                adapter, questions, task, file, dtype=args.dtype, cache=args.answers, has_table=False, pool=pool
            )
            print_shares(arm, {name: list(task.samples)}, runs.scores, console)


def main() -> None:
    """Trains the arms and prints the share of right plans, or of right answers, in each set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arms", nargs="+", choices=("few", "many", "compositions", "published"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=240, help="supervised steps of eight questions")
    parser.add_argument("--answers", type=Path, help="replies of the workers; scores answers instead of plans")
    parser.add_argument("--coder", default=SMALL_MODEL, help="model of the coder that answers")
    parser.add_argument("--dtype", default="bfloat16", help="float32 where the processor has no bfloat16 instructions")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.answers is None:
        print_plans(args, Console())
    else:
        print_answers(args, Console())


if __name__ == "__main__":
    main()
