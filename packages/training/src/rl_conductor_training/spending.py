"""Expected and actual spending of learning and training runs.

In: workers, limits and the calls of finished runs. Out: rough estimates, and what the calls took from a shared budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from decimal import Decimal

from rl_conductor._internal.formatting import dollars
from rl_conductor.calls.budget import NOTHING, Amount, Budget
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample, Task
from rl_conductor.trace.trace import Call, Trace
from rl_conductor.types import Dollars, Value
from rl_conductor.workflow.limits import Limits

CHARS_PER_TOKEN = 4
PROMPT_TOKENS = 100
"""Tokens of a worker's prompt besides the question and earlier replies."""
UNKNOWN_AMOUNT = "an unknown amount (a price is unknown)"
SHARE_DIGITS = 9
"""Digits after the point to which a share of a cap in dollars is rounded."""
DEFAULT_SECONDS = 3.0
"""Expected seconds of a call to a worker whose card states no latency."""


class CostEstimate(Value):
    """The expected cost of a run. It is rough: real replies may be longer or shorter."""

    calls: int
    tokens: int
    usd: Dollars | None
    """US dollars; `None` if the price of a worker is unknown."""
    minutes: float

    @property
    def text(self) -> str:
        """The estimate in words."""
        usd = UNKNOWN_AMOUNT if self.usd is None else dollars(self.usd)
        return f"about {self.calls:,} calls, {self.tokens:,} tokens, {usd}, {self.minutes:.0f} minutes"

    def within(self, limits: Limits) -> CostEstimate:
        """Returns the part of the cost that the caps allow: that of a run which the tightest one keeps smaller."""
        caps = (limits.calls, limits.tokens, limits.usd, limits.seconds)
        amounts = (self.calls, self.tokens, self.usd, self.minutes * 60)
        ratios = (float(cap) / float(amount) for cap, amount in zip(caps, amounts, strict=True) if cap and amount)
        share = min([1.0, *ratios])
        return CostEstimate(
            calls=int(self.calls * share),
            tokens=int(self.tokens * share),
            usd=None if self.usd is None else self.usd * Decimal(str(share)),
            minutes=self.minutes * share,
        )


def mean_question_tokens(samples: Sequence[Sample]) -> int:
    """Estimates the mean tokens of a question."""
    return sum(len(sample.question) for sample in samples) // max(len(samples), 1) // CHARS_PER_TOKEN


def unpriced_workers(pool: WorkerPool) -> list[str]:
    """Returns the names of the workers without a known price; those that delegate have no price of their own."""
    return [
        name for name, worker in pool.items() if worker.card.price is None and not worker.model.capabilities.delegates
    ]


def check_prices(pool: WorkerPool, limits: Limits) -> None:
    """Checks that the prices are known which a cap in dollars needs.

    Raises:
        ConfigError: one is not.
    """
    unpriced = unpriced_workers(pool)
    if limits.usd is not None and unpriced:
        raise ConfigError(
            f"usd={limits.usd} can't be enforced: the price of worker {unpriced[0]!r} is unknown; "
            'write "price" with "input" and "output", in dollars per million tokens, beside its "model", or cap the '
            "tokens instead"
        )


def check_judge_price(task: Task, limits: Limits) -> None:
    """Checks that the price of the task's judge, if it has one, is known if a cap in dollars needs it.

    Raises:
        ConfigError: it is not.
    """
    judge = next((sample.details["judge"] for sample in task.samples if "judge" in sample.details), None)
    if limits.usd is not None and judge is not None and task.judge_price is None:
        raise ConfigError(
            f'usd={limits.usd} can\'t be enforced: the price of the judge {judge} is unknown; write its "model" and '
            '"price" in a file and name it, as --judge judge.toml, or cap the tokens instead'
        )


def cached_amount(calls: Iterable[Call]) -> Amount:
    """Returns the charges of calls, or of those nested in them, for replies that came from the cache."""
    return sum(map(_cached_amount, calls), NOTHING)


def unanswered_amount(calls: Iterable[Call]) -> Amount:
    """Returns the part of the charges that is an upper bound: that of calls that failed or reported no usage."""
    charged = [(call.charged, call.usage) for call in calls if call.charged is not None]
    return Amount(
        sum((max(charge.usd - usage.cost, Decimal(0)) for charge, usage in charged), Decimal(0)),
        sum(max(charge.tokens - usage.total_tokens, 0) for charge, usage in charged),
    )


def describe_unanswered(usd: Decimal, tokens: int) -> str:
    """Says which part of a spending is an upper bound; empty if none is."""
    bounds = [dollars(usd)] if usd else []
    bounds += [f"{tokens:,} tokens"] if tokens else []
    if not bounds:
        return ""
    return f" (of this, {' and '.join(bounds)} are the most that failed and interrupted calls can have taken)"


def was_limited(trace: Trace, budget: Budget) -> bool:
    """Returns whether a limit of the shared budget, and not the system itself, decided how a run ended just now.

    A planner has only a share of the time that is left, so its time may be over before that of the budget.
    """
    deadline = budget.shared_deadline()
    remaining = math.inf if deadline is None else deadline.time - time.monotonic()
    is_shared = remaining + trace.seconds < (trace.limits.seconds or math.inf)

    def is_over(call: Call) -> bool:
        return remaining <= 0 or (is_shared and call.worker is None and not call.retryable)

    return any(
        (call.outcome == "refused" and not call.context_exceeded) or (call.outcome == "timeout" and is_over(call))
        for call in trace.calls
    )


def _cached_amount(call: Call) -> Amount:
    if call.nested is not None and call.nested.calls:
        return cached_amount(call.nested.calls)
    usage = call.usage
    return Amount(usage.cost, usage.total_tokens, 1) if usage.calls and usage.cached_calls == usage.calls else NOTHING
