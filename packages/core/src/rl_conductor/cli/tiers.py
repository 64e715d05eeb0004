"""What `calibrate --tiers` learns from, and what it tells of what it has learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor.cli import console, stored
from rl_conductor.errors import ConfigError
from rl_conductor.pool import WorkerPool

if TYPE_CHECKING:
    from rl_conductor.bench.examples import Example, Judged
    from rl_conductor.bench.runner import Section
    from rl_conductor.bench.settings import BenchSettings
    from rl_conductor.bench.statistics import Estimate
    from rl_conductor.bench.tiers import LearningReport
    from rl_conductor.store import Store

TIERS = "Tiers"
MOST_RUNS = 20_000
"""Kept runs that are read, the newest first."""

FileOption = Annotated[
    Path | None,
    typer.Option("--tiers", metavar="FILE", help="Learn which requests one call answers.", rich_help_panel=TIERS),
]
WorkerOption = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="NAME",
        help="Who answers alone; else who is right most often.",
        rich_help_panel=TIERS,
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
        help="Most wrong answers among those of one call.",
        rich_help_panel=TIERS,
    ),
]


@dataclass(frozen=True)
class Examples:
    """What is learned from."""

    each: list[Example]
    worker: str
    model: str
    source: str


def of_task(section: Section, settings: BenchSettings, worker: str | None) -> Examples:
    """What a worker alone made of a task: the named one, else the one that was right most often.

    Raises:
        ConfigError: there is no such worker.
    """
    from rl_conductor.bench.examples import of_rows  # noqa: PLC0415  brings scipy along, as all that is imported so here

    rows = {entrant.system.name: entrant.rows for entrant in section.entrants}
    who = _checked(worker, list(rows)) or max(rows, key=lambda name: sum(row.value for row in rows[name]))
    (task,) = settings.tasks.values()
    return Examples(of_rows(task.build().samples, rows[who]), who, section.models[who], task.task)


def of_runs(pool: Path, worker: str | None, store: str | None, config: Path | None) -> Examples:
    """What kept runs say of single calls of a worker: the named one, else the one whose were accepted most often.

    Raises:
        ConfigError: nothing is kept there, or no run says anything.
    """
    workers = WorkerPool.from_toml(pool)
    judged = stored.read(store, config, _judged)
    who = _checked(worker or judged.busiest, list(workers))
    if who is None:
        raise ConfigError(
            "no kept run says whether one call was enough: that takes a plan of one step that a second round judged, "
            "so limits of rounds = 2 or more; or learn from a task with --task"
        )
    model = workers[who].model.name
    console.note(console.stderr(), f"{judged.silent:,} runs say nothing of single calls")
    return Examples(judged.examples(who, model), who, model, "kept runs")


async def _judged(store: Store) -> Judged:
    from rl_conductor.bench.examples import Judged  # noqa: PLC0415
    from rl_conductor.store import Search  # noqa: PLC0415  an extra

    judged = Judged()
    for row in await store.runs(Search(status="done"), most=MOST_RUNS):
        trace = await store.trace(row.id)
        if trace is not None:
            judged.add(trace)
    return judged


def _checked(worker: str | None, known: list[str]) -> str | None:
    if worker is not None and worker not in known:
        raise ConfigError(f"no worker {worker!r}: the pool has {', '.join(known)}")
    return worker


def learn(examples: Examples, *, risk: float, to: Path) -> None:
    """Learn, tell how good it is, and write the file.

    Raises:
        ConfigError: there is too little to learn from, or nothing can be sent at that risk.
    """
    from rl_conductor.bench import tiers  # noqa: PLC0415

    made, report = tiers.learn(
        examples.each, worker=examples.worker, model=examples.model, risk=risk, source=examples.source
    )
    out = console.stdout()
    out.print(_told(report, risk))
    if made is None:
        raise ConfigError(
            f"no requests can be sent to one call of {examples.worker!r} at a risk of {risk:g}: not even the surest "
            f"are right that often; allow more with --risk, name another --worker, or bring more examples"
        )
    made.write(to)
    console.note(console.stderr(), f'the tiers are in {to}: write tiers = "{to.name}" into the pool file or a profile')


def _told(report: LearningReport, risk: float) -> Table:
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim")
    drawn.add_column()
    facts = {
        f"one call of {report.worker}": f"answers {_share(report.right)} of {report.right.n} requests",
        "told apart": f"{_share(report.accuracy)}, on requests that were not learned from",
        "Brier score": f"{report.brier:.3f}; {report.brier_of_none:.3f} for who knows only the share above",
        "predicted, right": ", ".join(f"{one.predicted:.2f} {one.right.value:.2f}" for one in report.bins),
        f"at most {risk:.1%} wrong": _from(report.threshold),
        "it would be sent": _share(report.sent),
        "of these wrong": "none is sent" if report.wrong is None else _share(report.wrong),
    }
    for name, value in facts.items():
        drawn.add_row(Text(console.one_line(name)), Text(console.one_line(value)))
    return drawn


def _from(threshold: float | None) -> str:
    return "at no probability" if threshold is None else f"one call from probability {threshold:.3f} on"


def _share(one: Estimate) -> str:
    return f"{one.value:.1%} ({one.low:.1%} to {one.high:.1%})"
