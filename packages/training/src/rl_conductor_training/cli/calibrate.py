"""The `calibrate` command: measures each worker on the user's tasks, and trains a router for single calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, seconds
from rl_conductor.cli.embedded import fetch_embedded
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor_training.cli import router
from rl_conductor_training.cli.bench import show_progress

if TYPE_CHECKING:
    from rl_conductor_training.bench.calibration import WorkerMeasurement
    from rl_conductor_training.bench.runner import TaskResult
    from rl_conductor_training.bench.settings import BenchSettings


def calibrate(
    pool: Annotated[Path, typer.Argument(metavar="POOL.toml", help="The pool file.")],
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="The task to measure on: composite:validation, jsonl:FILE, ..."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N samples.")] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, metavar="N", help="Maximum concurrent samples.")
    ] = 4,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this pool file instead of POOL.toml.")
    ] = None,
    router_file: router.FileOption = None,
    worker: router.WorkerOption = None,
    risk: router.RiskOption = 0.05,
    runs: router.RunsOption = None,
) -> None:
    """Measure each worker on a task and write the results to its card.

    Each worker is asked alone; the results are accuracy by domain and median latency. Do not benchmark on the same
    samples afterwards. The same command resumes after an interruption without repeating paid calls.

    With --router it also trains a router, which predicts the requests that a single call of one worker can answer. It
    learns from the task or, with --runs, from a server's runs. Use it with 'router = ...' in a pool file or profile.

    \b
    Examples:
      rl-conductor calibrate pool.toml --task jsonl:my-tasks.jsonl
      rl-conductor calibrate pool.toml --task composite:validation --limit 48 --out measured.toml
      rl-conductor calibrate pool.toml --task jsonl:my-tasks.jsonl --router router.json --risk 0.02
      rl-conductor calibrate pool.toml --runs runs.jsonl --router router.json
    """
    if (task is None) == (runs is None):
        raise ConfigError("write either --task TASK to measure workers, or --runs FILE --router FILE to train a router")
    for option, value in (("--runs", runs), ("--worker", worker)):
        if value is not None and router_file is None:
            raise ConfigError(f"{option} is for training a router: add --router FILE")
    if worker is not None:
        router.check_worker(worker, list(read_pool_file(pool).workers))  # before any call is paid for
    if task is not None:
        settings = _settings(pool, task, limit, concurrency)
        section = _measure(settings)
        _write_cards(section, pool, task=task, to=out or pool)
        if router_file is not None:
            router.train_router(router.examples_of_task(section, settings, worker), risk=risk, to=router_file)
    elif runs is not None and router_file is not None:
        router.train_router(router.examples_of_runs(pool, worker, runs), risk=risk, to=router_file)


def _settings(pool: Path, task: str, limit: int | None, concurrency: int) -> BenchSettings:
    # Imported here, as below, because they import numpy and scipy.
    from rl_conductor_training.bench.pools import BenchPoolSettings  # noqa: PLC0415
    from rl_conductor_training.bench.settings import BenchSettings, TaskSettings  # noqa: PLC0415
    from rl_conductor_training.bench.systems.single_model import SingleModel  # noqa: PLC0415

    return BenchSettings(
        tasks={"calibration": TaskSettings(name=task, limit=limit)},
        pools={"pool": BenchPoolSettings(file=pool)},
        systems={"alone": SingleModel(kind="alone")},
        concurrency=concurrency,
    )


def _measure(settings: BenchSettings) -> TaskResult:
    from rl_conductor._internal.paths import cache_folder  # noqa: PLC0415
    from rl_conductor_training.bench.results import ResultFile  # noqa: PLC0415
    from rl_conductor_training.bench.runner import Bench  # noqa: PLC0415

    fetch_embedded(settings.models)
    bench = Bench(settings, ResultFile(cache_folder() / "calibration.jsonl"))
    with show_progress(bench):
        (section,) = asyncio.run(bench.run())
    return section


def _write_cards(section: TaskResult, pool: Path, *, task: str, to: Path) -> None:
    from rl_conductor_training.bench.calibration import (  # noqa: PLC0415
        describe_failures,
        measure_worker,
        write_cards,
    )

    measurements = {result.system.name: measure_worker(result.results) for result in section.systems}
    console.stdout().print(_table(measurements))
    for failure in describe_failures(measurements):
        console.note(console.stderr(), failure)
    write_cards(pool, measurements, task=task, to=to)
    console.note(console.stderr(), f"the cards are in {to}")


def _table(measurements: dict[str, WorkerMeasurement]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for number, column in enumerate(("worker", "domain", "right", "n", "p50", "$ total", "failed")):
        table.add_column(column, justify="right" if number > 1 else "left", overflow="fold")
    for name, measurement in measurements.items():
        totals = (
            seconds(measurement.latency),
            cost(measurement.usage).replace("$", ""),
            str(measurement.failures),
        )
        for number, (domain, share) in enumerate(measurement.accuracy.items()):
            is_first = number == 0
            cells = (
                name if is_first else "",
                *(domain, share.formatted, str(share.n)),
                *(totals if is_first else ("",) * len(totals)),
            )
            table.add_row(*(Text(console.one_line(cell)) for cell in cells))
    return table
