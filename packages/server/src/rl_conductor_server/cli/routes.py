"""`routes`: whether conductors are better than the models that answer today, and how far each canary is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import typer
from rich.table import Table

from rl_conductor._internal.confidence import Interval
from rl_conductor._internal.formatting import cost_in_words, counted, dollars, seconds, tokens
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor_server.cli import stored
from rl_conductor_server.experiments.results import Trial, trials
from rl_conductor_server.experiments.spend_audit import Spread
from rl_conductor_server.store import Store


def routes(
    route: Annotated[str | None, typer.Argument(metavar="ROUTE", help="Its name, pinned or not.")] = None,
    *,
    canary: Annotated[
        float | None,
        typer.Option(
            "--canary", min=0, max=100, metavar="PERCENT", help="Let the conductor answer this share from now on."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, and nothing else.")] = False,
    store: stored.StoreOption = None,
    config: stored.ConfigOption = None,
) -> None:
    """Whether each route's conductor is better than the model that answers today, and its canary.

    Intervals hold the true value 95 times in a hundred. A server sees a new percentage within a few seconds.

    \b
    Examples:
      rl-conductor routes
      rl-conductor routes assistant --config conductor.toml
      rl-conductor routes assistant-2026-11-01 --canary 5
    """

    async def look(kept: Store) -> list[Trial]:
        known = await trials(kept, route)
        if route is not None and not known:
            raise ConfigError(f"no route {route!r} is kept there; 'rl-conductor routes' lists those that are")
        if canary is None:
            return known
        await _set(kept, [one.canary.route for one in known], canary)
        return await trials(kept, route)

    found = stored.read(store, config, look)
    if as_json:
        console.write_json(json.dumps([one.model_dump(mode="json") for one in found], indent=2))
        return
    for one in found:
        _tell(one)
    if not found:
        console.note(console.stderr(), "no server that keeps its runs there has had a route")


async def _set(store: Store, releases: list[str], percent: float) -> None:
    if len(releases) != 1:
        raise ConfigError(f"name one release for its canary: {', '.join(releases)}")
    await store.trials.set(releases[0], percent, "set by hand")


def _tell(one: Trial) -> None:
    out = console.stdout()
    canary = one.canary
    when = f"{datetime.fromtimestamp(canary.since):%m-%d %H:%M}"
    out.print(canary.route, style="bold")
    out.print(console.one_line(f"canary at {canary.percent:g} % since {when}: {canary.reason}"))
    told = f"{counted(one.pairs, 'pair')} compared for {cost_in_words(one.spent)}, {tokens(one.spent)}"
    out.print(told if one.pairs else f"no pair compared yet; {told.partition(' for ')[2]} spent")
    if one.pairs:
        out.print("", _verdicts(one), "", _amounts(one), sep="\n")
    out.print()


def _verdicts(one: Trial) -> Table:
    table = Table("the conductor's answer", "share", "95 % interval", box=None, pad_edge=False)
    for what, part in {
        "is better": one.wins,
        "is as good": one.ties,
        "is worse": one.losses,
        "is as good or better": one.as_good,
        f"is better, of {one.decided.n} that are no tie": one.decided,
    }.items():
        table.add_row(what, f"{part.value:.1%}", f"{part.low:.1%} to {part.high:.1%}")
    return table


def _amounts(one: Trial) -> Table:
    table = Table("an answer", "mean", "p50", "p95", "more, on average", "95 % interval", box=None, pad_edge=False)
    for name, compared, shown in (("seconds", one.seconds, seconds), ("dollars", one.dollars, _dollars)):
        if compared is not None:
            table.add_row(f"{name}, incumbent", *_spread(compared.incumbent, shown))
            table.add_row(f"{name}, conductor", *_spread(compared.conductor, shown), *_more(compared.more, shown))
    return table


def _spread(amounts: Spread, shown: Callable[[float], str]) -> Iterator[str]:
    return map(shown, (amounts.mean, amounts.p50, amounts.p95))


def _more(more: Interval | None, shown: Callable[[float], str]) -> Sequence[str]:
    if more is None:
        return ()
    value, low, high = (f"{'-' if one < 0 else '+'}{shown(abs(one))}" for one in (more.value, more.low, more.high))
    return value, f"{low} to {high}"


def _dollars(amount: float) -> str:
    return dollars(Decimal(str(amount)))
