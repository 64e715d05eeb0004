"""Guards of a canary: they trip when the conductor's answers are worse than allowed beyond statistical doubt. No I/O.

Each guard is an upper bound on a measure over a window of answers. It trips when the whole confidence interval of the
measure lies above the bound: a few bad answers prove nothing, and a bad release must not need a hundred requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_conductor_server.experiments.confidence import mean_interval, wilson_interval
from rl_conductor_server.settings import Guards
from rl_conductor_server.store.models import AnswerOutcome, PairVerdict

CONFIDENCE_LEVEL = 0.98
"""Two-sided: with a true value at the bound, one interval in a hundred lies above it."""
SLOW_SHARE = 0.05
"""Share of answers that may be slower than the 95th percentile."""


def find_tripped_guard(guards: Guards, answers: Sequence[AnswerOutcome], verdicts: Sequence[PairVerdict]) -> str | None:
    """Describes the first guard that trips; returns `None` if none does."""
    return next(_tripped_guards(guards, answers, verdicts), None)


def _tripped_guards(guards: Guards, answers: Sequence[AnswerOutcome], verdicts: Sequence[PairVerdict]) -> Iterator[str]:
    if len(answers) >= guards.min_answers:
        if guards.errors is not None:
            failed = [answer.failed for answer in answers]
            if _exceeds(guards.errors, failed):
                yield f"errors={guards.errors:g} exceeded: {sum(failed)} of {len(failed)} answers failed"
        if guards.p95_seconds is not None:
            slow = [answer.seconds > guards.p95_seconds for answer in answers]
            if _exceeds(SLOW_SHARE, slow):
                yield f"p95_seconds={guards.p95_seconds:g} exceeded: {sum(slow)} of {len(slow)} answers took longer"
        if guards.usd is not None:
            costs = [float(answer.cost) for answer in answers if answer.cost is not None]
            mean = mean_interval(costs, level=CONFIDENCE_LEVEL) if len(costs) >= guards.min_answers else None
            if mean is not None and mean.low > guards.usd:
                yield f"usd={guards.usd:g} exceeded: ${mean.value:.4f} per answer over {mean.n} answers"
    if len(verdicts) >= guards.min_answers and guards.losses is not None:
        lost = [verdict == "loss" for verdict in verdicts]
        if _exceeds(guards.losses, lost):
            yield f"losses={guards.losses:g} exceeded: {sum(lost)} of {len(lost)} comparisons lost"


def _exceeds(bound: float, violations: Sequence[bool]) -> bool:
    return wilson_interval(sum(violations), len(violations), level=CONFIDENCE_LEVEL).low > bound
