"""Router training for `calibrate --router`: its options, its examples and the printed report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.jsonl import read_lines
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.trace import Trace

if TYPE_CHECKING:
    from rl_conductor_training.bench.runner import TaskResult
    from rl_conductor_training.bench.settings import BenchSettings
    from rl_conductor_training.routing.router import RouterReport
    from rl_conductor_training.routing.router_examples import RouterExample
    from rl_conductor_training.statistics import Estimate

PANEL = "Router"

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--router",
        metavar="FILE",
        help="Train a router that predicts which requests need only one call, and write it to FILE.",
        rich_help_panel=PANEL,
    ),
]
WorkerOption = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="NAME",
        help="The worker for single calls; default: the most accurate one.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
RiskOption = Annotated[
    float,
    typer.Option(
        "--risk",
        min=0.001,
        max=0.5,
        metavar="SHARE",
        help="Maximum share of wrong answers among single calls.",
        rich_help_panel=PANEL,
    ),
]

RunsOption = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        metavar="FILE",
        help="Train the router on runs exported with 'rl-conductor runs --export FILE'.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class RouterExamples:
    """Training examples for a router, and their source."""

    examples: list[RouterExample]
    worker: str
    model: str
    source: str


def examples_of_task(section: TaskResult, settings: BenchSettings, worker: str | None) -> RouterExamples:
    """Collects the answers of a worker on a task: the given one, else the most accurate."""
    from rl_conductor_training.routing.router_examples import examples_from_scores  # noqa: PLC0415

    results = {result.system.name: result.results for result in section.systems}
    selected = worker or max(results, key=lambda name: sum(row.value for row in results[name]))
    (task,) = settings.tasks.values()
    scores = {result.key.sample: result.value for result in results[selected]}
    examples = examples_from_scores(task.build().samples, scores)
    return RouterExamples(examples, selected, section.models[selected], task.name)


def examples_of_runs(pool: Path, worker: str | None, file: Path) -> RouterExamples:
    """Collects single calls of a worker from exported runs: of the given one, else the most often accepted.

    Raises:
        ConfigError: the file can't be read, or no run shows whether a single call was enough.
    """
    from rl_conductor_training.routing.router_examples import TraceExamples  # noqa: PLC0415

    workers = WorkerPool.from_toml(pool)
    judged = TraceExamples()
    for trace in read_lines(file, Trace):
        judged.add_trace(trace)
    selected = worker or judged.most_accepted_worker
    if selected is None:
        raise ConfigError(
            "no run shows whether one call was enough: that takes a plan of one step that a second round judged, "
            "so limits of rounds = 2 or more; or use a task, with --task"
        )
    check_worker(selected, list(workers))
    model = workers[selected].model.name
    console.note(console.stderr(), f"{judged.skipped:,} runs show nothing about single calls")
    return RouterExamples(judged.examples(selected, model), selected, model, "exported runs")


def check_worker(worker: str, pool: list[str]) -> None:
    """Checks that the pool has a worker.

    Raises:
        ConfigError: it does not.
    """
    if worker not in pool:
        raise ConfigError(f"no worker {worker!r}: the pool has {', '.join(pool)}")


def train_router(examples: RouterExamples, *, risk: float, to: Path) -> None:
    """Trains a router, prints its quality and writes the file.

    Raises:
        ConfigError: there are too few examples, or no request can be sent at that risk.
    """
    from rl_conductor_training.routing import router  # noqa: PLC0415  imports scipy

    trained, report = router.train_router(
        examples.examples, worker=examples.worker, model=examples.model, risk=risk, source=examples.source
    )
    console.stdout().print(_report_table(report, risk))
    if trained is None:
        raise ConfigError(
            f"no request can be sent to a single call of {examples.worker!r} at a risk of {risk:g}: not even the most "
            "probable ones are right that often; raise --risk, name another --worker, or add examples"
        )
    trained.write(to)
    console.note(console.stderr(), f'the router is in {to}: write router = "{to.name}" into the pool file or a profile')


def _report_table(report: RouterReport, risk: float) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    facts = {
        f"one call of {report.worker}": f"answers {_share(report.right)} of {report.right.n} requests",
        "accuracy": f"{_share(report.accuracy)}, on held-out requests",
        "Brier score": f"{report.brier:.3f}; {report.brier_baseline:.3f} for always predicting the share above",
        "predicted, right": ", ".join(f"{each.predicted:.2f} {each.right.value:.2f}" for each in report.bins),
        f"at most {risk:.1%} wrong": _threshold(report.threshold),
        "sent to one call": _share(report.sent),
        "of these wrong": "none is sent" if report.wrong is None else _share(report.wrong),
    }
    for name, value in facts.items():
        table.add_row(Text(console.one_line(name)), Text(console.one_line(value)))
    return table


def _threshold(threshold: float | None) -> str:
    return "at no probability" if threshold is None else f"one call from probability {threshold:.3f} on"


def _share(estimate: Estimate) -> str:
    return f"{estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"
