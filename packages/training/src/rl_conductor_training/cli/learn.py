"""The `learn` command: learns a conductor for the user's own questions and workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, counted
from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.cli import exit_codes, options
from rl_conductor.cli.embedded import fetch_embedded
from rl_conductor.cli.output import console
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.cli.learn_source import LearnSource
from rl_conductor_training.output_folder import check_folder

if TYPE_CHECKING:
    from rl_conductor_training.learn import LearnProgress, LearnSettings
    from rl_conductor_training.learn.experience import ExperienceRow
    from rl_conductor_training.learn.record import FeedbackLearnRecord, LearnRecord
    from rl_conductor_training.reporting import Table as ReportTable
    from rl_conductor_training.spending import CostEstimate


TaskArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="A file of questions (JSON Lines or CSV), or a task such as composite:train or my_tasks:capitals.",
        show_default=False,
    ),
]
HeldOutOption = Annotated[
    str | None,
    typer.Option(
        "--heldout",
        metavar="TASK",
        help="Your own held-out questions, a file or a task; default: a part of TASK.",
        show_default=False,
    ),
]
InstructionsOption = Annotated[
    bool,
    typer.Option(
        "--instructions",
        help="Also evolve the planner's instructions and the workers' cards; needs the extra 'gepa'.",
    ),
]
ReflectionOption = Annotated[
    str | None,
    typer.Option(
        "--reflection-model",
        metavar="MODEL",
        help="Model that rewrites the instructions, as provider:name; default: the planner's.",
        show_default=False,
    ),
]
WeightsOption = Annotated[
    bool,
    typer.Option(
        "--weights",
        help="Also train a small local planner on the results; needs the extra 'train'.",
    ),
]
WeightsModelOption = Annotated[
    str | None,
    typer.Option(
        "--weights-model",
        metavar="MODEL",
        help="Model to train: embedded:NAME, a folder, or a name on the hub; default: embedded:smollm2-135m.",
        show_default=False,
    ),
]
FROM_RUNS = "Production runs"
FromRunsOption = Annotated[
    Path | None,
    typer.Option(
        "--from-runs",
        metavar="FILE",
        help="Learn from runs exported with 'rl-conductor runs --export FILE' instead of a TASK.",
        rich_help_panel=FROM_RUNS,
    ),
]
JudgeOption = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="MODEL",
        help="Model that scores answers to questions with scoring 'judge', or to those of runs: provider:name, or "
        "FILE.toml with its price and options.",
        show_default=False,
    ),
]
FeedbackKeyOption = Annotated[
    str | None,
    typer.Option("--feedback-key", metavar="KEY", help="Only feedback by this key counts.", rich_help_panel=FROM_RUNS),
]
UpdateOption = Annotated[
    bool,
    typer.Option("--update", help="Add the runs to those that FOLDER was learned from.", rich_help_panel=FROM_RUNS),
]
PoolOption = Annotated[Path, typer.Option("--pool", metavar="POOL.toml", help="The pool file with your workers.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder of the learned conductor.")]
UsdOption = Annotated[
    Decimal | None,
    typer.Option("--usd", parser=options.usd, metavar="USD", help="Hard cap in US dollars.", show_default=False),
]
TokensOption = Annotated[
    int | None, typer.Option("--tokens", min=1, metavar="N", help="Hard cap in tokens.", show_default=False)
]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", min=0.01, metavar="N", help="Hard cap in minutes.", show_default=False)
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the split and the search.")]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", min=1, metavar="N", help="Maximum concurrent runs.")]
EstimateOption = Annotated[bool, typer.Option("--estimate", help="Print the expected cost and stop; nothing is spent.")]


def learn(
    task: TaskArgument = None,
    *,
    pool: PoolOption,
    out: OutOption,
    heldout: HeldOutOption = None,
    instructions: InstructionsOption = False,
    reflection_model: ReflectionOption = None,
    weights: WeightsOption = False,
    weights_model: WeightsModelOption = None,
    from_runs: FromRunsOption = None,
    judge: JudgeOption = None,
    feedback_key: FeedbackKeyOption = None,
    update: UpdateOption = False,
    usd: UsdOption = None,
    tokens: TokensOption = None,
    minutes: MinutesOption = None,
    seed: SeedOption = 0,
    concurrency: ConcurrencyOption = 4,
    estimate_only: EstimateOption = False,
) -> None:
    """Learn which of your workers should answer which questions.

    It tries them alone and in chains, and evaluates the result on held-out questions. It prints the expected cost
    first. The caps are hard: a call that could exceed them is not made. The same command resumes after an interruption
    without repeating paid calls. docs/learning.md describes the questions and the result.

    \b
    Examples:
      rl-conductor learn questions.jsonl --pool pool.toml --usd 2 --out support
      rl-conductor learn questions.jsonl --judge openai:gpt-6-sol --pool pool.toml --usd 5 --out support
      rl-conductor learn examples/wiki/questions.jsonl --pool examples/wiki/pool.toml --minutes 12 --out runs/wiki
      rl-conductor ask --conductor support "..."
      rl-conductor learn --from-runs new.jsonl --update --judge openai:gpt-6-sol --pool pool.toml --out support
    """
    source = LearnSource(task, heldout, from_runs, judge, feedback_key, update)
    limits = Limits(usd=usd, tokens=tokens, seconds=None if minutes is None else minutes * 60)
    learners = {"instructions": (instructions, reflection_model), "weights": (weights, weights_model)}
    source.check({**learners, "caps": (usd, tokens, minutes)})
    _prepare(pool, out)
    with TemporaryDirectory() as unused, (progress := _Progress(limits)).show(out):
        record = source.learn(
            pool,
            out=_copy_for_estimate(out, Path(unused)) if estimate_only else out,
            budget=limits,
            settings=_settings(seed, concurrency, **learners),
            on_estimate=partial(_show_estimate, limits=limits, is_all=estimate_only),
            on_progress=progress.update,
        )
    print_record(record, out)


def _settings(
    seed: int, concurrency: int, instructions: tuple[bool, str | None], weights: tuple[bool, str | None]
) -> LearnSettings:
    """Returns the settings, with the learners of instructions and weights if these or their models are wanted."""
    from rl_conductor_training.learn import (  # noqa: PLC0415 - imports scipy
        EvolvedInstructions,
        LearnSettings,
        PlannerWeights,
        TableSettings,
    )

    settings = LearnSettings(seed=seed, concurrency=concurrency)
    learners = [*settings.learners]
    if any(instructions):
        learners.append(partial(EvolvedInstructions, reflection_model=instructions[1], seed=seed))
    if any(weights):
        training = TableSettings(seed=seed, **({"model": weights[1]} if weights[1] else {}))
        learners.append(partial(PlannerWeights, training))
    return replace(settings, learners=tuple(learners))


def _copy_for_estimate(out: Path, parent: Path) -> Path:
    from rl_conductor_training.learn.folder import copy_for_estimate  # noqa: PLC0415 - imports scipy

    copy = parent / out.name  # as errors name it
    copy_for_estimate(out, copy)
    return copy


def _show_estimate(estimate: CostEstimate, *, limits: Limits, is_all: bool) -> None:
    console.note(console.stderr(), _format_estimate(estimate, limits))
    if is_all:
        raise typer.Exit


def _prepare(pool: Path, out: Path) -> None:
    """Checks that the folder can be written to, and downloads the weights of the pool's models."""
    check_folder(out)
    content = read_pool_file(pool)
    entries = [*content.workers.values(), *([content.planner] if content.planner else [])]
    fetch_embedded(entry.model for entry in entries)


def _format_estimate(estimate: CostEstimate, limits: Limits) -> str:
    from rl_conductor_training.learn.estimate import REPLY_TOKENS  # noqa: PLC0415
    from rl_conductor_training.learn.report import describe_caps  # noqa: PLC0415

    caps = describe_caps(limits)
    bound = f"never more than {caps}" if caps else "no cap is set"
    return f"expected: {estimate.text}; rough, with replies of {REPLY_TOKENS} tokens; {bound}"


@dataclass
class _Progress:
    """Shows the stage, the spending, the time left and the best workflow so far."""

    limits: Limits
    stage: str = "reading the questions"
    runs: int = 0
    unpriced_calls: int = 0
    spending: Amount = NOTHING
    started: float = field(default_factory=time.monotonic)
    scores: dict[str, list[float]] = field(default_factory=dict)
    live: Live | None = None

    def update(self, progress: LearnProgress) -> None:
        """Shows the new state."""
        self.spending = progress.spending
        if progress.stage != self.stage:
            self.stage = progress.stage
            if self.live is None:
                console.note(console.stderr(), self.text.plain)
        if progress.row is not None:
            self._add(progress.row)
        if self.live is not None:
            self.live.update(self.text)

    def _add(self, row: ExperienceRow) -> None:
        from rl_conductor_training.learn.failures import count_failed  # noqa: PLC0415
        from rl_conductor_training.learn.search.candidates import describe  # noqa: PLC0415

        self.runs += 1
        unknown_prices = max(row.unpriced_calls - count_failed(row.outcomes), 0)  # the others count as upper bounds
        self.unpriced_calls += unknown_prices + row.scoring.unpriced_calls
        if row.workflow is not None and row.system == "workflow":
            self.scores.setdefault(describe(row.workflow), []).append(row.score)

    @property
    def text(self) -> Text:
        """The state in one line."""
        usage = Usage(cost=self.spending.usd, unpriced_calls=self.unpriced_calls)
        spending = f"{cost(usage)}, {self.spending.tokens:,} tokens"
        parts = [self.stage, counted(self.runs, "run"), spending]
        if self.limits.seconds is not None:
            remaining = max(self.limits.seconds - (time.monotonic() - self.started), 0)
            parts.append(f"{remaining / 60:.1f} minutes left")
        if self.scores:
            best = max(self.scores, key=lambda name: sum(self.scores[name]) / (len(self.scores[name]) + 1))
            scores = self.scores[best]
            parts.append(f"best so far: {best} ({sum(scores):g} of {len(scores)})")
        return Text(console.one_line(" · ".join(parts)), overflow="ellipsis", no_wrap=True)

    @contextmanager
    def show(self, out: Path) -> Iterator[None]:
        """Shows the progress until the block ends.

        Raises:
            typer.Exit: on Ctrl-C.
        """
        error = console.stderr()
        try:
            if error.is_terminal:
                with Live(self.text, console=error, transient=True, refresh_per_second=4) as self.live:
                    yield
            else:
                yield
        except KeyboardInterrupt:
            # Until the questions are read, there is no folder.
            resumes = f"the same command resumes from {str(out)!r}" if out.is_dir() else "nothing was spent or stored"
            console.fail(f"interrupted after {counted(self.runs, 'run')}; {resumes}")
            raise typer.Exit(exit_codes.INTERRUPTED) from None


def print_record(record: LearnRecord | FeedbackLearnRecord, out: Path) -> None:
    """Prints the tables of the learning run in the folder `out`."""
    from rl_conductor_training.cut_off_replies import TITLE, cut_off_table  # noqa: PLC0415 - imports jinja2
    from rl_conductor_training.learn import FeedbackLearnRecord, report  # noqa: PLC0415

    if isinstance(record, FeedbackLearnRecord):
        _print_feedback(record, out)
        return
    stdout = console.stdout()
    stdout.print(_table(report.gate_table(record)))
    stdout.print(Text(f"{record.gate.reason}.\n"))
    stdout.print(_table(report.worker_table(record)))
    if record.proof is not None:
        if record.validation:
            stdout.print(Text(f"Validation questions (n = {record.validation[0].n})", style="bold"))
            stdout.print(_table(report.validation_table(record)))
        stdout.print(Text(f"Held-out questions ({record.proof.size}, seed {record.seed})", style="bold"))
        stdout.print(_table(report.system_table(record.proof)))
        stdout.print(_table(report.comparison_table(record.proof)))
        stdout.print(Text(f"{record.proof.reason}."))
    if record.failures:
        stdout.print(Text("\nCalls that failed", style="bold"))
        stdout.print(_table(report.failure_table(record)))
        stdout.print(Text(report.FAILURE_METHOD))
    if record.cut_off:
        stdout.print(Text(f"\n{TITLE}", style="bold"))
        stdout.print(_table(cut_off_table(record.cut_off)))
    for note in record.notes:
        stdout.print(Text(f"Note: {note}."))
    if record.reused:
        console.note(console.stderr(), f"{record.reused} of {counted(record.runs, 'run')} reused from {out}")
    stdout.print(Text(f"Recommended, and saved in {out}: {record.recommended}"))
    contents = ", with wrong answers of the best fixed workflow," if record.wrong_answers else ""
    console.note(
        console.stderr(),
        f"spent {report.describe_spending(record)}; "
        f"the report{contents} is in {out / 'report.html'}; use it with rl-conductor ask --conductor {out}",
    )


def _print_feedback(record: FeedbackLearnRecord, out: Path) -> None:
    from rl_conductor_training.learn import report  # noqa: PLC0415

    stdout = console.stdout()
    stdout.print(_table(report.feedback_table(record.shapes)))
    stdout.print(Text(f"{report.FEEDBACK_METHOD}\n"))
    plans = counted(record.examples, "liked plan")
    stdout.print(Text(f"Saved in {out}: {record.recommended}, {plans} for the planner. Nothing was evaluated."))
    console.note(
        console.stderr(),
        "name --judge to try other workflows on these questions and to measure a gain, or compare in a canary; "
        f"use it with rl-conductor ask --conductor {out}",
    )


def _table(report_table: ReportTable) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for number, column in enumerate(report_table.columns):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    for row in report_table.rows:
        table.add_row(*(Text(console.one_line(cell)) for cell in row))
    return table
