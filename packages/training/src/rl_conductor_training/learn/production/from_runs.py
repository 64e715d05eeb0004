"""`learn_from_runs`: learns from exported production runs with feedback.

With a judge, the questions become a task: workflows are explored, compared and proved as for any other task. Without
one, no new answer could be scored, so that the planner only gets the plans that users liked, and nothing is proved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

from rl_conductor._internal.jsonl import write_lines, write_value
from rl_conductor._internal.version import package_version
from rl_conductor.config.learned_folder import OPENING_FILE
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample, Score, Task
from rl_conductor.trace.feedback import POSITIVE_SCORE
from rl_conductor.workflow.example import PlanExample
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.learn.data import add_judge_version
from rl_conductor_training.learn.experience import cost_order
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder
from rl_conductor_training.learn.learn_run import OnProgress
from rl_conductor_training.learn.pipeline import learn
from rl_conductor_training.learn.production.stored_runs import (
    RUNS_FILE,
    RatedWorkflow,
    StoredRuns,
    merge_stored_runs,
    read_stored_runs,
    request_text,
)
from rl_conductor_training.learn.record import FeedbackLearnRecord, LearnRecord, ShapeSummary
from rl_conductor_training.learn.search.candidates import describe, generalize
from rl_conductor_training.learn.settings import LearnSettings
from rl_conductor_training.learn.workspace import Pool, Workspace, open_workspace
from rl_conductor_training.output_folder import lock_folder
from rl_conductor_training.spending import CostEstimate
from rl_conductor_training.statistics import estimate
from rl_conductor_training.tasks.groups import group_of, hash_question
from rl_conductor_training.tasks.scorers.judge import Judge, UnaidedJudge, load_judge


async def learn_from_runs(
    path: str | Path,
    pool: Pool,
    *,
    out: str | Path,
    judge: Model | str | None = None,
    feedback_key: str | None = None,
    update: bool = False,
    budget: Limits | None = None,
    planner: Planner | Model | str | None = None,
    settings: LearnSettings | None = None,
    on_counts: Callable[[str], None] = lambda _counts: None,
    on_estimate: Callable[[CostEstimate], None] = lambda _estimate: None,
    on_progress: OnProgress = lambda _: None,
) -> LearnRecord | FeedbackLearnRecord:
    """Learns a conductor from runs of a server, and writes it to a folder that `Conductor.load` reads.

    `path` is a file that `rl-conductor runs --export` wrote, and `judge` a model that scores the answers of other
    workflows, as for `load_judge`; without one, no worker is called. Only feedback by `feedback_key` counts, if there
    is one. `update` adds the runs to those that the folder was learned from, and goes on from its experience.
    `on_counts` is called with a line that says what became of the runs. The other arguments are those of `learn`.

    Raises:
        ConfigError: the file can't be read, has too few usable runs, or the folder was learned from other runs, or was
            proved and there is no judge.
        LimitError: the caps are too low to compare the workers.
    """
    folder = Path(out)
    _check_replaceable(folder, judge)
    with lock_folder(folder):
        stored = merge_stored_runs(read_stored_runs(Path(path), feedback_key=feedback_key), folder, update=update)
        rate = partial(_rate, stored, on_counts)

        def begin(cost: CostEstimate) -> None:
            on_estimate(cost)
            write_lines(folder / RUNS_FILE, stored.runs)  # not before: what fails until then adds no runs to the folder

        if judge is None:
            return await _learn_from_feedback(stored, rate, open_workspace(pool, planner, folder), begin)
        return await learn(
            add_judge_version(judged_task(stored, load_judge(judge)), judge),
            pool,
            out=folder,
            budget=budget,
            planner=planner,
            settings=settings,
            production=rate,
            on_estimate=begin,
            on_progress=on_progress,
        )


def _rate(stored: StoredRuns, on_counts: Callable[[str], None], workers: WorkerPool) -> list[RatedWorkflow]:
    on_counts(stored.report(workers))
    return stored.rated_workflows(workers)


def _check_replaceable(folder: Path, judge: Model | str | None) -> None:
    """Raises `ConfigError` if a conductor that was proved would be replaced by one that can't be."""
    if judge is None and (folder / OPENING_FILE).exists():
        raise ConfigError(
            f"the conductor in {str(folder)!r} was evaluated on held-out questions, and without a judge nothing can "
            "be evaluated: name a judge, or another folder"
        )


async def _learn_from_feedback(
    stored: StoredRuns,
    rate: Callable[[WorkerPool], list[RatedWorkflow]],
    workspace: Workspace,
    begin: Callable[[CostEstimate], None],
) -> FeedbackLearnRecord:
    """Gives the planner the liked plans as examples, and writes the folder."""
    async with aclosing(workspace.conductor) as conductor:
        record, examples = collect_liked_plans(stored, rate(conductor.pool))
        begin(CostEstimate(calls=0, tokens=0, usd=Decimal(0), minutes=0.0))
        learned = LearnedSystem(
            method=record.recommended,
            planner=replace(conductor.planner, examples=examples),
            questions={hash_question(example.question) for example in examples},
        )
        write_conductor_folder(workspace.folder, learned, conductor.pool, workspace.pool_file)
        write_value(workspace.folder / "record.json", record)
    return record


def judged_task(stored: StoredRuns, judge: Model) -> Task:
    """Builds a task from the questions; a judge compares replies with the answer that users liked, if there is one.

    Raises:
        ConfigError: there are no questions.
    """
    with_answer, unaided = Judge(judge), UnaidedJudge(judge)

    async def score(sample: Sample, text: str) -> Score:
        full = sample.model_copy(update={"question": request_text(sample)})
        return await (with_answer if sample.answer else unaided)(full, text)

    samples = tuple(
        sample.model_copy(update={"details": sample.details | {"judge": judge.name}})
        for sample in stored.samples(only_rated=False)
    )
    return Task("runs", samples, score, judge.price)


def collect_liked_plans(
    stored: StoredRuns, rated: list[RatedWorkflow]
) -> tuple[FeedbackLearnRecord, tuple[PlanExample, ...]]:
    """Collects the best-rated plan of each question as an example for the planner; of equally good ones the cheapest.

    Raises:
        ConfigError: no plan was liked.
    """
    questions = {sample.id: sample for sample in stored.samples(only_rated=True)}
    best: dict[str, RatedWorkflow] = {}
    for run in sorted(rated, key=_preference):
        if run.score >= POSITIVE_SCORE:
            best.setdefault(run.sample, run)
    if not best:
        raise ConfigError(
            "no run with positive feedback used the workers of this pool, so there is nothing to learn from; "
            "collect feedback, or name --judge to score new answers"
        )
    examples = tuple(
        PlanExample(question=questions[sample].question, workflow=run.workflow) for sample, run in sorted(best.items())
    )
    record = FeedbackLearnRecord(
        created=datetime.now(UTC),
        package=package_version(),
        counts=dict(stored.counts),
        questions=len({run.sample for run in rated}),
        shapes=_summarize_shapes(rated, questions),
        examples=len(examples),
    )
    return record, examples


def _preference(run: RatedWorkflow) -> tuple[float, tuple[bool, Decimal, float], str]:
    return -run.score, cost_order(run.usd, run.tokens, run.unpriced_calls), run.workflow.model_dump_json()


def _summarize_shapes(rated: list[RatedWorkflow], questions: dict[str, Sample]) -> tuple[ShapeSummary, ...]:
    shapes: dict[str, list[RatedWorkflow]] = defaultdict(list)
    for run in rated:
        shapes[describe(generalize(run.workflow))].append(run)
    ordered = sorted(shapes.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        ShapeSummary(
            workflow=name,
            score=estimate([run.score for run in runs], [group_of(questions[run.sample]) for run in runs]),
            usd=sum((run.usd for run in runs), Decimal(0)) / len(runs),
            unpriced_calls=sum(run.unpriced_calls for run in runs),
            seconds=sum(run.seconds for run in runs) / len(runs),
        )
        for name, runs in ordered
    )
