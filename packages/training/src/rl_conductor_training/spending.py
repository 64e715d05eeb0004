"""Expected and actual spending of learning and training runs.

In: workers, limits and the calls of finished runs. Out: rough estimates, and a budget that several runs share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from decimal import Decimal

from rl_conductor._internal.formatting import dollars
from rl_conductor.calls.budget import NOTHING, Amount, Budget
from rl_conductor.errors import ConductorError, ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample, Task
from rl_conductor.trace.trace import Call, Trace
from rl_conductor.types import Dollars, Value
from rl_conductor.workflow.limits import Limits

CHARS_PER_TOKEN = 4
PROMPT_TOKENS = 100
"""Tokens of a worker's prompt besides the question and earlier replies."""
DEFAULT_SECONDS = 3.0
"""Expected seconds of a call to a worker whose card states no latency."""
USD_DIGITS = 9
"""Digits after the point to which a share of a cap in dollars is rounded."""


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
        usd = "an unknown amount (a price is unknown)" if self.usd is None else dollars(self.usd)
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


def check_prices(pool: WorkerPool, limits: Limits) -> None:
    """Checks that the prices are known which a cap in dollars needs.

    Raises:
        ConfigError: one is not.
    """
    unpriced = [
        name for name, worker in pool.items() if worker.card.price is None and not worker.model.capabilities.delegates
    ]
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


class CapReachedError(ConductorError):
    """A cap of the run is used up, so the current step can't be finished."""

    def __init__(self) -> None:
        super().__init__("a cap of the training run is used up")


class RunBudget:
    """The caps on the calls to workers of a whole training run, or of one of its processes."""

    def __init__(self, limits: Limits, previous: Amount = NOTHING, *, share: int = 1) -> None:
        """Creates the budget.

        Args:
            limits: the caps on dollars, tokens and time; `seconds` counts from now.
            previous: what earlier calls of the same run have spent.
            share: number of processes that share dollars and tokens evenly.
        """
        usd = None if limits.usd is None else max(limits.usd - previous.usd, Decimal(0)) / share
        tokens = None if limits.tokens is None else max(limits.tokens - previous.tokens, 0) // share
        rounded = None if usd is None else round(usd, USD_DIGITS)
        self.calls = Budget(Limits(usd=rounded, tokens=tokens, seconds=limits.seconds), surrounds_runs=True)
        """The budget that each call is charged to."""
        self.calls.deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        self.is_exhausted = False
        """Whether a call was refused or cancelled by a cap."""

    @property
    def spending(self) -> Amount:
        """The spending since the budget was created, without replies from the cache."""
        return self.calls.spent

    @property
    def is_over(self) -> bool:
        """Whether a cap was reached."""
        deadline = self.calls.deadline
        return self.is_exhausted or (deadline is not None and time.monotonic() >= deadline)

    def settle(self, trace: Trace) -> None:
        """Takes back the charges for cached replies of a finished run, and notes whether a cap ended it."""
        self.calls.charge(NOTHING - cached_amount(trace.calls))
        self.is_exhausted = self.is_exhausted or was_limited(trace, self.calls)


def cached_amount(calls: Iterable[Call]) -> Amount:
    """Returns what calls, or those nested in them, were charged although their replies came from the cache."""
    return sum(map(_cached_amount, calls), NOTHING)


def was_limited(trace: Trace, budget: Budget) -> bool:
    """Returns whether a limit of the shared budget, and not the system itself, decided how a run ended just now."""
    deadline = budget.shared_deadline()
    is_late = deadline is not None and time.monotonic() >= deadline.time
    return any(
        (call.outcome == "refused" and not call.context_exceeded) or (call.outcome == "timeout" and is_late)
        for call in trace.calls
    )


def _cached_amount(call: Call) -> Amount:
    if call.nested is not None and call.nested.calls:
        return cached_amount(call.nested.calls)
    usage = call.usage
    return Amount(usage.cost, usage.total_tokens, 1) if usage.calls and usage.cached_calls == usage.calls else NOTHING
