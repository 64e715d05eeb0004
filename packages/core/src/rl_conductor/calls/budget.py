"""Enforces `Limits` on every model call: its upper bound is reserved before, and its real usage committed after.

A call that does not fit beside those in flight waits until they end, because they usually cost less than was reserved;
a call that would not fit even then is refused before anything is spent on it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import ClassVar, Literal, NamedTuple, Self

from rl_conductor._internal.formatting import counted
from rl_conductor.errors import LimitError
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import UpperBound

_UP, _DOWN = Context(prec=2, rounding=ROUND_CEILING), Context(prec=2, rounding=ROUND_FLOOR)
"""The rounding of dollars in errors: up for amounts that are needed, down for amounts that are left."""
UNKNOWN_PRICE = Decimal("Infinity")
"""The amount that a call to a model without a price needs, in a `LimitError`."""


@dataclass(frozen=True)
class Amount:
    """An amount of money, tokens and calls that is spent, reserved or requested."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    calls: int = 0

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """The amount that `usage` reports; calls without a known price count as free."""
        return cls(usage.cost, usage.total_tokens, usage.calls)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.usd + other.usd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.usd - other.usd, self.tokens - other.tokens, self.calls - other.calls)


NOTHING = Amount()
"""The zero of amounts."""


@dataclass(frozen=True)
class FollowUp:
    """The smallest call that has to follow another one for that to be of use, as an answer follows a plan."""

    model: str
    bound: UpperBound

    @property
    def amount(self) -> Amount:
        """The amount that would be reserved for it."""
        return Amount(self.bound.cost or Decimal(0), self.bound.tokens, 1)


class Deadline(NamedTuple):
    """When the time of a run is over."""

    time: float
    """On `time.monotonic`."""
    seconds: float
    """The run's `limits.seconds`."""
    name: str
    """The limit that set it, for errors."""


@dataclass(eq=False, slots=True)
class Reservation:
    """Part of a budget, reserved for one call while the block of an `async with` runs.

    The call is charged once, when the block ends:

    - nothing if it was not sent;
    - its upper bound after `begin`, because the vendor may have billed it;
    - the reported usage after `commit`, or a call without tokens after `refund`;
    - nothing after `release`: the calls of a run inside of it have reservations of their own. What it used itself is
      added by `charge_besides`.
    """

    budget: Budget
    model: str
    bound: UpperBound
    follow_up: FollowUp | None = None
    """The call is refused if the limits don't leave enough for this one."""
    amount: Amount = field(init=False)
    """The amount that is reserved: the upper bound of the call."""
    used: Amount = field(default=NOTHING, init=False)
    is_released: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.amount = Amount(self.bound.cost or Decimal(0), self.bound.tokens, 1)

    async def __aenter__(self) -> Self:
        await self.budget.acquire(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.is_released:
            self.budget.release(self)

    def release(self) -> None:
        """Ends the reservation early and charges nothing, because a run inside of this call reserves its own calls.

        Otherwise that run would wait for the amount that the call around it has reserved, and be charged twice.
        """
        if not self.is_released:
            self.used, self.is_released = NOTHING, True
            self.budget.release(self)

    def begin(self) -> None:
        """Marks the call as sent: from now on the vendor may bill it, however it ends."""
        self.used = self.amount

    def commit(self, usage: Usage) -> None:
        """Charges the usage that the vendor reported instead of the reserved amount.

        A call without reported tokens is charged in full, unless it is free, as a search is, and its usage is known:
        tokens may be limited as well as dollars.
        """
        if usage.total_tokens or (self.bound.cost == 0 and not usage.unpriced_calls):
            usd = self.amount.usd if usage.unpriced_calls else usage.cost
            self.used = Amount(usd, usage.total_tokens, 1)

    def charge_besides(self, usage: Usage) -> None:
        """Charges the usage of a call besides the runs inside of it; their calls count instead of the released one."""
        budget: Budget | None = self.budget
        while budget is not None:
            budget.charge(Amount(usage.cost, usage.total_tokens))
            budget = budget.parent

    def refund(self) -> None:
        """Charges the attempt but neither money nor tokens, because the vendor rejected the call."""
        self.used = Amount(calls=1)


class Budget:
    """The spending of one run or of several, checked against its limits and those of the budgets around it.

    Thread-safe: a worker that is not async may start a run on another event loop.
    """

    owner: ClassVar[str | None] = None
    """The owner of the budget, for `LimitError.owner`; `None` for a run's."""
    limits_name: ClassVar[str] = "limits"
    """What errors call its limits."""

    def __init__(
        self,
        limits: Limits,
        *,
        parent: Budget | None = None,
        outer_reservation: Reservation | None = None,
        surrounds_runs: bool = False,
    ) -> None:
        """Creates a budget with nothing spent.

        Args:
            limits: the limits on the spending.
            parent: the budget that everything is charged to as well, with limits of its own.
            outer_reservation: the reservation in `parent` of the call that the run is part of. The first call of the
                run releases it, because the run's calls are reserved one by one.
            surrounds_runs: whether the budget is not that of a run but of what runs are part of, such as the requests
                of an API key; it counts as no level of nesting, and `limits.depth` does not apply.
        """
        self.limits = limits
        self.deadline: float | None = None
        """When `limits.seconds` are over, on `time.monotonic`, also for the runs inside of this one."""
        self.deadline_name = "limits.seconds"
        """The limit that set the deadline, for errors."""
        self._is_closed = False
        self.parent = parent
        self._outer_reservation = outer_reservation
        self.surrounds_runs = surrounds_runs
        self.depth: int = (0 if parent is None else parent.depth) + (not surrounds_runs)
        """The number of runs that are nested in one another, including this one."""
        self._is_limited = (limits.usd, limits.tokens, limits.calls) != (None, None, None)
        self.spent = self.reserved = NOTHING
        self._in_flight = 0
        self.lock = threading.Lock()
        """Held while the amounts change."""
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def counts_calls(self) -> bool:
        """Whether calls have to be reserved: a limit here depends on them, or a budget around counts them."""
        return self._is_limited or self.limits.concurrency is not None or self.parent is not None

    @property
    def counts_tokens(self) -> bool:
        """Whether a limit here or in a run around depends on the number of tokens that a call may use."""
        here = self.limits.usd is not None or self.limits.tokens is not None
        return here or (self.parent is not None and self.parent.counts_tokens)

    def shared_deadline(self) -> Deadline | None:
        """The earliest deadline of this budget and those around it."""
        earliest: Deadline | None = None
        budget: Budget | None = self
        while budget is not None:
            if budget.deadline is not None and (earliest is None or budget.deadline < earliest.time):
                earliest = Deadline(budget.deadline, budget.limits.seconds or 0.0, budget.deadline_name)
            budget = budget.parent
        return earliest

    def check_depth(self) -> None:
        """Raises `LimitError` when conductors are nested deeper than any of them allows."""
        budget: Budget | None = self
        while budget is not None:
            levels = self.depth - budget.depth + 1
            if levels > budget.limits.depth and not budget.surrounds_runs:
                whose = "" if budget.depth == 1 else f" of the conductor on level {budget.depth}"
                raise LimitError(
                    f"conductors call one another {levels} deep, but limits.depth{whose} is {budget.limits.depth}; "
                    "raise it, or take a conductor out of a pool",
                    limit="depth",
                    needed=levels,
                    remaining=budget.limits.depth,
                )
            budget = budget.parent

    def close(self) -> None:
        """Refuses all further calls, here and in budgets inside: the run is over, though a thread of it may go on."""
        self._is_closed = True

    def charge(self, amount: Amount) -> None:
        """Adds spending from elsewhere, such as an interrupted run's earlier process."""
        with self.lock:
            self.spent += amount

    def reserve(self, model: str, bound: UpperBound, follow_up: FollowUp | None = None) -> Reservation:
        """Returns a reservation for one call to `model`, to be entered by `async with`.

        Entering waits until the call fits, and raises `LimitError` if it would not fit with no other call in flight.
        """
        return Reservation(self, model, bound, follow_up)

    async def acquire(self, reservation: Reservation) -> None:
        """Waits until `reservation` fits into this budget and those around it, and reserves its amount there."""
        self._refuse_unpriced(reservation.model, reservation.bound)
        if reservation.follow_up is not None:
            self._refuse_useless(reservation, reservation.follow_up)
        while not self._try_reserve(reservation):
            await self.make_room(reservation)
        if self._outer_reservation is not None:
            self._outer_reservation.release()
        if self.parent is not None:
            try:
                await self.parent.acquire(reservation)
            except BaseException:
                self._release(reservation.amount, NOTHING)
                raise

    def release(self, reservation: Reservation) -> None:
        """Frees the reserved amount, and charges the part of it that was used."""
        self._release(reservation.amount, reservation.used)
        if self.parent is not None:
            self.parent.release(reservation)

    def _try_reserve(self, reservation: Reservation) -> bool:
        """Reserves the amount if it fits now; returns whether it did."""
        with self.lock:
            if self._is_closed:
                message = f"the run around this call to {reservation.model} has ended"
                raise LimitError(message, limit="calls", needed=1, remaining=0)
            if not self.fits(reservation.amount):
                return False
            self.reserved += reservation.amount
            self._in_flight += 1
            return True

    def _release(self, amount: Amount, used: Amount) -> None:
        with self.lock:
            self.reserved -= amount
            self.spent += used
            self._in_flight -= 1
            waiting = tuple(self._waiting)
        for change in waiting:
            with suppress(RuntimeError):  # its event loop was closed, so nothing waits there any more
                change.get_loop().call_soon_threadsafe(_wake, change)

    # ------------------------------------------------------------------------ for subclasses to override

    @property
    def spent_in_total(self) -> Amount:
        """The final spending, by which calls are refused; a budget that other processes share adds theirs."""
        return self.spent

    def fits(self, amount: Amount) -> bool:
        """Whether another call may use `amount` besides those in flight; called with `lock` held."""
        max_in_flight = self.limits.concurrency
        if max_in_flight is not None and self._in_flight >= max_in_flight:
            return False
        return not self._is_limited or self._exceeded_limit(self.spent + self.reserved + amount) is None

    async def make_room(self, reservation: Reservation) -> None:
        """Waits until a call that does not fit now may fit: here, until one in flight has ended.

        Raises:
            LimitError: it would not fit with no other call in flight.
        """
        with self.lock:
            if self.fits(reservation.amount):
                return
            self.refuse_excess(reservation.model, reservation.amount)
            release = self.next_release()
        await release

    def describe_excess(self, model: str, limit: str, needed: Decimal | int, remaining: Decimal | int) -> str:
        """Words the refusal of a call to `model` that needs more than is left."""
        allowed, name = getattr(self.limits, limit), f"{self.limits_name}.{limit}"
        required = allowed - remaining + needed
        if limit == "calls":
            state = f"leaves {counted(int(remaining), 'call')}" if remaining > 0 else "is used up"
            return f"{name}={allowed} {state}; raise it to {required} or more to allow a call to {model}"
        dollars = limit == "usd"
        need = f"cost up to ${_format(needed, _UP)}" if dollars else f"use up to {needed} tokens"
        rest = ("$" if dollars else "") + _format(max(remaining, 0), _DOWN)
        return (
            f"a call to {model} may {need}, but {name}={_format(allowed)} leaves {rest}; "
            f"write {name}={_format(required, _UP)} or more"
        )

    def describe_unpriced(self, model: str) -> str:
        """Words the refusal of a call to `model`, which has no known price although dollars are limited."""
        return (
            f"the price of {model} is unknown, so {self.limits_name}.usd can't be enforced; write its price in dollars "
            "per million tokens, in a pool file as price = { input = 2.5, output = 10 }, in code as "
            '"price": {"input": 2.5, "output": 10} in its entry, or price=Price(input=2.5, output=10) of its model'
        )

    # ---------------------------------------------------------------------------- for subclasses to call

    def next_release(self) -> asyncio.Future[None]:
        """Returns a future that is done once a call in flight has ended; called with `lock` held."""
        release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(release)
        release.add_done_callback(self._waiting.discard)
        return release

    def refuse_excess(self, model: str, amount: Amount) -> None:
        """Raises `LimitError` if `amount`, for a call to `model`, would not fit with no other call in flight."""
        total = self.spent_in_total
        limit = self._exceeded_limit(total + amount)
        if limit is not None:
            needed, remaining = getattr(amount, limit), getattr(self.limits, limit) - getattr(total, limit)
            message = self.describe_excess(model, limit, needed, remaining)
            raise LimitError(message, limit=limit, needed=needed, remaining=remaining, owner=self.owner)

    def _exceeded_limit(self, total: Amount) -> Literal["usd", "tokens", "calls"] | None:
        limits = self.limits
        if limits.usd is not None and total.usd > limits.usd:
            return "usd"
        if limits.tokens is not None and total.tokens > limits.tokens:
            return "tokens"
        if limits.calls is not None and total.calls > limits.calls:
            return "calls"
        return None

    def _refuse_useless(self, reservation: Reservation, follow_up: FollowUp) -> None:
        """Raises `LimitError` if the limits leave too little for `follow_up`, even if `reservation` cost nothing."""
        self._refuse_unpriced(follow_up.model, follow_up.bound)
        if self._exceeded_limit(self.spent_in_total + follow_up.amount + Amount(calls=1)) is not None:
            both = reservation.amount + follow_up.amount
            self.refuse_excess(f"{reservation.model} and then one to {follow_up.model}", both)

    def _refuse_unpriced(self, model: str, bound: UpperBound) -> None:
        if self.limits.usd is not None and bound.cost is None:
            message, remaining = self.describe_unpriced(model), self.limits.usd - self.spent_in_total.usd
            raise LimitError(message, limit="usd", needed=UNKNOWN_PRICE, remaining=remaining, owner=self.owner)


def _wake(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)


def _format(amount: Decimal | int, rounding: Context | None = None) -> str:
    """Formats dollars rounded by `rounding`, if given; counts are exact."""
    if isinstance(amount, int):
        return str(amount)
    return f"{rounding.create_decimal(amount) if rounding else amount:f}"
