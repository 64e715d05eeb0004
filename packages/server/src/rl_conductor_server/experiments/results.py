"""What the trial of a route shows: whose answers were better how often, what each side cost and how long it took.

Pairs are of the same requests, so differences are taken pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl_conductor._internal.confidence import Interval, mean_interval, wilson_interval
from rl_conductor.types import Usage, Value
from rl_conductor_server.experiments.spend_audit import Spread
from rl_conductor_server.store import Canary, Pair, Store

MOST = 10_000
"""Pairs of a release that count, the newest."""


class Compared(Value):
    """An amount on either side."""

    incumbent: Spread
    conductor: Spread
    more: Interval | None
    """By how much the conductor's is larger, on average; `None` of fewer than two pairs."""

    @classmethod
    def of(cls, both: Iterable[tuple[float, float]]) -> Compared | None:
        """Of amounts of the incumbent and the conductor; `None` of none."""
        amounts = list(both)
        if not amounts:
            return None
        theirs, ours = zip(*amounts, strict=True)
        more = mean_interval([our - their for their, our in amounts])
        return cls(incumbent=Spread.of(theirs), conductor=Spread.of(ours), more=more)


class Trial(Value):
    """The report."""

    canary: Canary
    spent: Usage
    """Beside what users asked, judges included."""
    pairs: int
    wins: Interval
    """As shares of all pairs, with their 95 % intervals."""
    ties: Interval
    losses: Interval
    as_good: Interval
    """Wins and ties."""
    decided: Interval
    """Wins, as a share of the pairs that are no tie: above a half the conductor is better, if its interval is too."""
    seconds: Compared | None
    dollars: Compared | None
    """Of the pairs whose prices are known on both sides."""


async def trials(store: Store, route: str | None = None) -> list[Trial]:
    """Of every release of a route, by its name, pinned or not, or of all routes."""
    return [
        _trial(canary, await store.trials.pairs(canary.route, most=MOST), await store.trials.spent(canary.route))
        for canary in await store.trials.canaries(route)
    ]


def _trial(canary: Canary, pairs: Sequence[Pair], spent: Usage) -> Trial:
    verdicts = [pair.verdict for pair in pairs]
    wins, ties, losses = (verdicts.count(verdict) for verdict in ("win", "tie", "loss"))
    priced = [pair for pair in pairs if pair.incumbent_cost is not None and pair.conductor_cost is not None]
    return Trial(
        canary=canary,
        spent=spent,
        pairs=len(pairs),
        wins=wilson_interval(wins, len(pairs)),
        ties=wilson_interval(ties, len(pairs)),
        losses=wilson_interval(losses, len(pairs)),
        as_good=wilson_interval(wins + ties, len(pairs)),
        decided=wilson_interval(wins, wins + losses),
        seconds=Compared.of((pair.incumbent_seconds, pair.conductor_seconds) for pair in pairs),
        dollars=Compared.of((float(pair.incumbent_cost or 0), float(pair.conductor_cost or 0)) for pair in priced),
    )
