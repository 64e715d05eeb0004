"""Results of an experiment: verdicts, costs and times of both arms.

Both answers of a pair are to the same request, so differences are computed pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl_conductor.types import Usage, Value
from rl_conductor_server.distribution import Distribution
from rl_conductor_server.experiments.confidence import Interval, mean_interval, wilson_interval
from rl_conductor_server.store import Canary, Pair, Store

MAX_PAIRS = 10_000
"""Maximum number of pairs per release; older ones are ignored."""


class ArmComparison(Value):
    """A quantity measured on both arms."""

    baseline: Distribution
    conductor: Distribution
    more: Interval | None
    """Mean of the conductor's value minus the baseline's; `None` for fewer than two pairs."""

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[float, float]]) -> ArmComparison | None:
        """Compares pairs of (baseline, conductor); returns `None` if there are none."""
        values = list(pairs)
        if not values:
            return None
        baseline, conductor = zip(*values, strict=True)
        difference = mean_interval([of_conductor - of_baseline for of_baseline, of_conductor in values])
        return cls(baseline=Distribution.of(baseline), conductor=Distribution.of(conductor), more=difference)


class ExperimentResult(Value):
    """The result of one release of an experiment; rates have 95 % confidence intervals."""

    canary: Canary
    usage: Usage
    """Usage of shadow runs and judges, which no user requested."""
    pairs: int
    wins: Interval
    """Share of all pairs in which the conductor's answer is better."""
    ties: Interval
    losses: Interval
    as_good: Interval
    """Wins and ties."""
    decided: Interval
    """Wins as a share of the pairs that are not ties; the conductor is better if the interval lies above 0.5."""
    seconds: ArmComparison | None
    dollars: ArmComparison | None
    """The costs of the pairs whose cost is known on both arms."""


async def load_results(store: Store, name: str | None = None) -> list[ExperimentResult]:
    """Loads the result of every release of an experiment, by its name or pinned name, or of all experiments."""
    experiments = store.experiments
    return [
        _summarize(
            canary,
            await experiments.list_pairs(canary.experiment, limit=MAX_PAIRS),
            await experiments.comparison_usage(canary.experiment),
        )
        for canary in await experiments.list_canaries(name)
    ]


def _summarize(canary: Canary, pairs: Sequence[Pair], usage: Usage) -> ExperimentResult:
    verdicts = [pair.verdict for pair in pairs]
    wins, ties, losses = (verdicts.count(verdict) for verdict in ("win", "tie", "loss"))
    priced = [pair for pair in pairs if pair.baseline_cost is not None and pair.conductor_cost is not None]
    return ExperimentResult(
        canary=canary,
        usage=usage,
        pairs=len(pairs),
        wins=wilson_interval(wins, len(pairs)),
        ties=wilson_interval(ties, len(pairs)),
        losses=wilson_interval(losses, len(pairs)),
        as_good=wilson_interval(wins + ties, len(pairs)),
        decided=wilson_interval(wins, wins + losses),
        seconds=ArmComparison.from_pairs((pair.baseline_seconds, pair.conductor_seconds) for pair in pairs),
        dollars=ArmComparison.from_pairs(
            (float(pair.baseline_cost or 0), float(pair.conductor_cost or 0)) for pair in priced
        ),
    )
