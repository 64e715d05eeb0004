"""`calibrate`: what each worker of a pool can do on the user's own tasks, and which requests one of them does alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor.amounts import cost, seconds
from rl_conductor.cli import console, stored, tiers
from rl_conductor.cli.bench import get_ready, running
from rl_conductor.errors import ConfigError

if TYPE_CHECKING:
    from rl_conductor.bench.calibration import Measured
    from rl_conductor.bench.runner import Section
    from rl_conductor.bench.settings import BenchSettings


def calibrate(
    pool: Annotated[Path, typer.Argument(metavar="POOL.toml", help="The pool file.")],
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="What to measure on: composite:validation, jsonl:FILE, ..."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N samples.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, metavar="N", help="Most samples at a time.")] = 4,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write another pool file instead of this one.")
    ] = None,
    learn: tiers.FileOption = None,
    worker: tiers.WorkerOption = None,
    risk: tiers.RiskOption = 0.05,
    store: stored.StoreOption = None,
    config: stored.ConfigOption = None,
) -> None:
    """Measure each worker alone on a task and write that on its card.

    What is measured is accuracy by domain and median latency. Do not test on the same samples afterwards. The same
    command goes on after an interruption and pays for nothing twice.

    With --tiers it also learns which requests one call of one worker answers: from the task, or without --task from the
    runs that a server has kept. The file is for 'tiers = ...' in a pool file or a profile.

    \b
    Examples:
      rl-conductor calibrate pool.toml --task jsonl:my-tasks.jsonl
      rl-conductor calibrate pool.toml --task composite:validation --limit 48 --out measured.toml
      rl-conductor calibrate pool.toml --task jsonl:my-tasks.jsonl --tiers tiers.json --risk 0.02
      rl-conductor calibrate pool.toml --store sqlite:///rl-conductor.db --tiers tiers.json
    """
    if task is None and learn is None:
        raise ConfigError("there is nothing to do: write --task TASK, or --tiers FILE to learn from kept runs")
    if task is not None and (store or config):
        raise ConfigError("--task and kept runs (--store, --config) can't both be learned from; choose one")
    if task is not None:
        settings = _settings(pool, task, limit, concurrency)
        section = _measured(settings)
        _write_cards(section, pool, task=task, to=out or pool)
        if learn is not None:
            tiers.learn(tiers.of_task(section, settings, worker), risk=risk, to=learn)
    elif learn is not None:
        tiers.learn(tiers.of_runs(pool, worker, store, config), risk=risk, to=learn)


def _settings(pool: Path, task: str, limit: int | None, concurrency: int) -> BenchSettings:
    # Imported here, as below, because they bring numpy and scipy along.
    from rl_conductor.bench.pools import PoolSettings  # noqa: PLC0415
    from rl_conductor.bench.settings import BenchSettings, TaskSettings  # noqa: PLC0415
    from rl_conductor.bench.systems.alone import Alone  # noqa: PLC0415

    return BenchSettings(
        tasks={"calibration": TaskSettings(task=task, limit=limit)},
        pools={"pool": PoolSettings(file=pool)},
        systems={"alone": Alone(kind="alone")},
        concurrency=concurrency,
    )


def _measured(settings: BenchSettings) -> Section:
    from rl_conductor.bench.rows import Results  # noqa: PLC0415
    from rl_conductor.bench.runner import Bench  # noqa: PLC0415
    from rl_conductor.folders import cache_folder  # noqa: PLC0415

    get_ready(settings)
    bench = Bench(settings, Results(cache_folder() / "calibration.jsonl"))
    with running(bench):
        (section,) = asyncio.run(bench.run())
    return section


def _write_cards(section: Section, pool: Path, *, task: str, to: Path) -> None:
    from rl_conductor.bench.calibration import measured, write_cards  # noqa: PLC0415

    found = {entrant.system.name: measured(entrant.rows) for entrant in section.entrants}
    console.stdout().print(_table(found))
    write_cards(pool, found, task=task, to=to)
    console.note(console.stderr(), f"the cards are in {to}")


def _table(found: dict[str, Measured]) -> Table:
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for number, column in enumerate(("worker", "domain", "right", "n", "p50", "$ in all", "failed")):
        drawn.add_column(column, justify="right" if number > 1 else "left", overflow="fold")
    for name, one in found.items():
        whole = (seconds(one.latency), cost(one.usage).replace("$", ""), str(one.failures))
        for number, (domain, share) in enumerate(one.accuracy.items()):
            told = (domain, share.in_words, str(share.n))
            cells = (name if number == 0 else "", *told, *(whole if number == 0 else ("",) * 3))
            drawn.add_row(*(Text(console.one_line(cell)) for cell in cells))
    return drawn
