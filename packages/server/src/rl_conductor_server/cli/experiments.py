"""`experiments`: prints the results of each experiment, and sets its canary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import typer
from rich.table import Table

from rl_conductor._internal.formatting import cost_in_words, counted, dollars, seconds, tokens
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor_server.cli import store_options
from rl_conductor_server.distribution import Distribution
from rl_conductor_server.experiments.confidence import Interval
from rl_conductor_server.experiments.results import ExperimentResult, load_results
from rl_conductor_server.store import Store


def experiments(
    experiment: Annotated[
        str | None,
        typer.Argument(metavar="EXPERIMENT", help="Name of the experiment, with or without its release date."),
    ] = None,
    *,
    canary: Annotated[
        float | None,
        typer.Option(
            "--canary",
            min=0,
            max=100,
            metavar="PERCENT",
            help="Change the percentage of requests that the conductor answers.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, and nothing else.")] = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """Compare conductors with their baselines; show or change canaries.

    Intervals are 95 % confidence intervals. Servers apply a new percentage within a few seconds.

    \b
    Examples:
      rl-conductor experiments
      rl-conductor experiments assistant --config server.toml
      rl-conductor experiments assistant-2026-11-01 --canary 5
    """

    async def load(opened: Store) -> list[ExperimentResult]:
        results = await load_results(opened, experiment)
        if experiment is not None and not results:
            raise ConfigError(f"no experiment {experiment!r} in this store; 'rl-conductor experiments' lists them")
        if canary is None:
            return results
        await _set_canary(opened, [result.canary.experiment for result in results], canary)
        return await load_results(opened, experiment)

    results = store_options.with_store(store, config, load)
    if as_json:
        console.write_json(json.dumps([result.model_dump(mode="json") for result in results], indent=2))
        return
    for result in results:
        _print_result(result)
    if not results:
        console.note(console.stderr(), "no experiments in this store")


async def _set_canary(store: Store, releases: Sequence[str], percent: float) -> None:
    if len(releases) != 1:
        raise ConfigError(f"--canary changes one experiment; name one of: {', '.join(releases)}")
    await store.experiments.set_canary(releases[0], percent, "set on the command line")


def _print_result(result: ExperimentResult) -> None:
    out = console.stdout()
    canary = result.canary
    since = f"{datetime.fromtimestamp(canary.since):%m-%d %H:%M}"
    out.print(canary.experiment, style="bold")
    out.print(console.one_line(f"canary at {canary.percent:g} % since {since}: {canary.reason}"))
    usage = f"{cost_in_words(result.usage)}, {tokens(result.usage)}"
    if result.pairs:
        out.print(f"{counted(result.pairs, 'pair')} compared for {usage}")
        out.print("", _verdict_table(result), "", _comparison_table(result), sep="\n")
    else:
        out.print(f"no pairs compared yet; {usage} spent")
    out.print()


def _verdict_table(result: ExperimentResult) -> Table:
    table = Table("the conductor's answer", "share", "95 % interval", box=None, pad_edge=False)
    rates = {
        "is better": result.wins,
        "is as good": result.ties,
        "is worse": result.losses,
        "is as good or better": result.as_good,
        f"is better, of {result.decided.n} without ties": result.decided,
    }
    for label, rate in rates.items():
        table.add_row(label, f"{rate.value:.1%}", f"{rate.low:.1%} to {rate.high:.1%}")
    return table


def _comparison_table(result: ExperimentResult) -> Table:
    table = Table("per answer", "mean", "p50", "p95", "mean difference", "95 % interval", box=None, pad_edge=False)
    for name, comparison, format_value in (
        ("seconds", result.seconds, seconds),
        ("dollars", result.dollars, _format_dollars),
    ):
        if comparison is not None:
            table.add_row(f"{name}, baseline", *_distribution_cells(comparison.baseline, format_value))
            table.add_row(
                f"{name}, conductor",
                *_distribution_cells(comparison.conductor, format_value),
                *_difference_cells(comparison.more, format_value),
            )
    return table


def _distribution_cells(values: Distribution, format_value: Callable[[float], str]) -> Iterator[str]:
    return map(format_value, (values.mean, values.p50, values.p95))


def _difference_cells(difference: Interval | None, format_value: Callable[[float], str]) -> Sequence[str]:
    if difference is None:
        return ()
    value, low, high = (
        f"{'-' if bound < 0 else '+'}{format_value(abs(bound))}"
        for bound in (difference.value, difference.low, difference.high)
    )
    return value, f"{low} to {high}"


def _format_dollars(amount: float) -> str:
    return dollars(Decimal(str(amount)))
