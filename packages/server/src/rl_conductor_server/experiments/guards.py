"""Guards of a canary: when what users got from the conductor is surely worse than was allowed. Pure.

Each guard is a bound on the answers in a window. It is broken once the whole interval of what was measured lies beyond
the bound: a few bad answers are no proof, and a bad release is not given a hundred requests to show itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_conductor._internal.confidence import mean_interval, wilson_interval
from rl_conductor_server.settings import Guards
from rl_conductor_server.store.models import Answered, PairVerdict

LEVEL = 0.98
"""Of the intervals: one in a hundred lies wholly beyond a bound that is just kept."""
SLOW = 0.05
"""The share of answers that may be slower than the 95th percentile."""


def broken(guards: Guards, answers: Sequence[Answered], verdicts: Sequence[PairVerdict]) -> str | None:
    """The first guard that is surely broken, in words; `None` while none is."""
    return next(_broken(guards, answers, verdicts), None)


def _broken(guards: Guards, answers: Sequence[Answered], verdicts: Sequence[PairVerdict]) -> Iterator[str]:
    if len(answers) >= guards.least:
        if guards.errors is not None:
            yield from _beyond(f"errors={guards.errors:g}", guards.errors, [one.failed for one in answers])
        if guards.p95_seconds is not None:
            slow = [one.seconds > guards.p95_seconds for one in answers]
            yield from _beyond(f"p95_seconds={guards.p95_seconds:g}", SLOW, slow)
        if guards.usd is not None:
            yield from _dear(guards.usd, [float(one.cost) for one in answers if one.cost is not None])
    if len(verdicts) >= guards.least and guards.losses is not None:
        yield from _beyond(f"losses={guards.losses:g}", guards.losses, [verdict == "loss" for verdict in verdicts])


def _beyond(guard: str, most: float, bad: Sequence[bool]) -> Iterator[str]:
    if wilson_interval(sum(bad), len(bad), level=LEVEL).low > most:
        yield f"{guard} is broken: {sum(bad)} of {len(bad)}"


def _dear(most: float, costs: Sequence[float]) -> Iterator[str]:
    mean = mean_interval(costs, level=LEVEL)
    if mean is not None and mean.low > most:
        yield f"usd={most:g} is broken: ${mean.value:.4f} an answer, of {mean.n}"
