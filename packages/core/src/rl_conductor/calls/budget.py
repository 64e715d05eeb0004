"""Spending within `Limits`: a call is reserved at its most before it is made and settled at its real use after.

A call that does not fit beside those in flight waits until they are settled, because they usually cost less
than was reserved; a call that would not fit even then is refused, before anything is spent on it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Self

from rl_conductor.errors import LimitError
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits, UpperBound

enclosing: ContextVar[Ledger | None] = ContextVar("enclosing", default=None)
"""The ledger of the run inside which this code runs: a conductor in another's pool spends on both."""

holding: ContextVar[Reservation | None] = ContextVar("holding", default=None)
"""What the call inside which this code runs holds there."""

reports: ContextVar[list[Usage] | None] = ContextVar("reports", default=None)
"""Where a run that a call sets off tells that call what it used, however it ends."""


_UP, _DOWN = Context(prec=2, rounding=ROUND_CEILING), Context(prec=2, rounding=ROUND_FLOOR)
"""How errors round dollars, so that what they tell holds: up what is needed, down what is left."""


@dataclass(frozen=True)
class Amount:
    """What is spent, reserved or wanted."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    calls: int = 0

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """What `usage` comes to, as far as it is known."""
        return cls(usage.cost, usage.total_tokens, usage.calls)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.usd + other.usd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.usd - other.usd, self.tokens - other.tokens, self.calls - other.calls)


@dataclass(eq=False)
class Reservation:
    """Room held for one call. A call that was begun but not settled is charged in full: it may have been billed."""

    ledger: Ledger
    model: str
    bound: UpperBound
    used: Amount = field(default=Amount(), init=False)
    handed_back: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.amount = Amount(self.bound.cost or Decimal(0), self.bound.tokens, 1)

    async def __aenter__(self) -> Self:
        await self.ledger.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.handed_back:
            self.ledger.leave(self)

    def hand_back(self) -> None:
        """Hold and charge nothing any more: a run inside this call does so for each call of its own.

        Else that run would wait for room that the call around it holds, and be charged twice.
        """
        if not self.handed_back:
            self.used, self.handed_back = Amount(), True
            self.ledger.leave(self)

    def begin(self) -> None:
        """From here on the vendor may bill the call, whatever comes of it."""
        self.used = self.amount

    def settle(self, usage: Usage) -> None:
        """Replace what was held by what the call really used, as far as the vendor tells.

        One that tells no tokens is charged in full, unless it costs nothing: a look-up, say, uses none.
        """
        if usage.total_tokens or self.bound.cost == 0:
            usd = self.amount.usd if usage.unpriced_calls else usage.cost
            self.used = Amount(usd, usage.total_tokens, 1)

    def release(self) -> None:
        """Charge the attempt but neither money nor tokens: the vendor refused the call."""
        self.used = Amount(calls=1)


class Ledger:
    """What one run has spent and reserved, checked against its limits and those of the runs around it.

    Calls may come from several event loops: a worker that is not async may set off a run on another.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.deadline: float | None = None
        """When `limits.seconds` are over, on the clock of `time.monotonic`, where several runs share them."""
        self.parent = enclosing.get()
        self._around = holding.get()
        self.depth: int = 1 if self.parent is None else self.parent.depth + 1
        self._capped = any(cap is not None for cap in (limits.usd, limits.tokens, limits.calls))
        self.spent = Amount()
        self.reserved = Amount()
        self._in_flight = 0
        self._lock = threading.Lock()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def counts_tokens(self) -> bool:
        """Whether a limit here or around depends on how many tokens a call may use."""
        here = self.limits.usd is not None or self.limits.tokens is not None
        return here or (self.parent is not None and self.parent.counts_tokens)

    def shared_deadline(self) -> tuple[float, float] | None:
        """The earliest `deadline` here or around, and the `limits.seconds` behind it."""
        found: list[tuple[float, float]] = []
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger.deadline is not None:
                found.append((ledger.deadline, ledger.limits.seconds or 0.0))
            ledger = ledger.parent
        return min(found, default=None)

    def check_depth(self) -> None:
        """Raise `LimitError` when conductors sit deeper in one another than any of them allows."""
        ledger: Ledger | None = self
        while ledger is not None:
            levels = self.depth - ledger.depth + 1
            if levels > ledger.limits.depth:
                raise LimitError(
                    f"conductors call one another {levels} deep, but limits.depth is {ledger.limits.depth}",
                    limit="depth",
                    needed=levels,
                    left=ledger.limits.depth,
                )
            ledger = ledger.parent

    def charge(self, amount: Amount) -> None:
        """Count what was spent on this run before, in a process that is gone or under another host."""
        with self._lock:
            self.spent += amount

    def reserve(self, model: str, bound: UpperBound) -> Reservation:
        """Room for one call to `model`, held while the block of an `async with` runs.

        Entering waits until it fits, and raises `LimitError` when it would not fit even beside nothing in flight.
        """
        return Reservation(self, model, bound)

    async def enter(self, wanted: Reservation) -> None:
        """Hold room here and in every run around this one, once there is; see `reserve`."""
        self._refuse_unpriced(wanted.model, wanted.bound)
        while (change := self._hold(wanted)) is not None:
            try:
                await change
            finally:
                self._waiting.discard(change)
        if self._around is not None:
            self._around.hand_back()
        if self.parent is not None:
            try:
                await self.parent.enter(wanted)
            except BaseException:
                self._withdraw(wanted.amount, Amount())
                raise

    def leave(self, held: Reservation) -> None:
        """Give the room back, less what was used."""
        self._withdraw(held.amount, held.used)
        if self.parent is not None:
            self.parent.leave(held)

    def _hold(self, wanted: Reservation) -> asyncio.Future[None] | None:
        """Hold room if there is some now; else what to wait for before it is worth asking again."""
        with self._lock:
            if self._fits(wanted.amount):
                self.reserved += wanted.amount
                self._in_flight += 1
                return None
            self._refuse_excess(wanted.model, wanted.amount)
            change = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            return change

    def _withdraw(self, held: Amount, used: Amount) -> None:
        with self._lock:
            self.reserved -= held
            self.spent += used
            self._in_flight -= 1
            waiting = tuple(self._waiting)
        for change in waiting:
            with suppress(RuntimeError):  # its event loop was closed: nobody waits any more
                change.get_loop().call_soon_threadsafe(_come, change)

    def _fits(self, amount: Amount) -> bool:
        most = self.limits.concurrency
        if most is not None and self._in_flight >= most:
            return False
        return not self._capped or not self._excess(self.spent + self.reserved + amount)

    def _excess(self, amount: Amount) -> tuple[str, Decimal | int, Decimal | int] | None:
        limits = self.limits
        if limits.usd is not None and amount.usd > limits.usd:
            return "usd", amount.usd, limits.usd
        if limits.tokens is not None and amount.tokens > limits.tokens:
            return "tokens", amount.tokens, limits.tokens
        if limits.calls is not None and amount.calls > limits.calls:
            return "calls", amount.calls, limits.calls
        return None

    def _refuse_excess(self, model: str, amount: Amount) -> None:
        excess = self._excess(self.spent + amount)
        if excess is None:
            return
        limit, enough, cap = excess
        needed: Decimal | int = getattr(amount, limit)
        left: Decimal | int = cap - getattr(self.spent, limit)
        takes = {
            "usd": f"may cost up to ${_shown(needed, _UP)}",
            "tokens": f"may use up to {needed} tokens",
            "calls": "is one more",
        }
        rest = ("$" if limit == "usd" else "") + _shown(max(left, 0), _DOWN)
        raise LimitError(
            f"a call to {model} {takes[limit]}, but limits.{limit}={_shown(cap)} leaves {rest}; "
            f"write limits.{limit}={_shown(enough, _UP)} or more",
            limit=limit,
            needed=needed,
            left=left,
        )

    def _refuse_unpriced(self, model: str, bound: UpperBound) -> None:
        if self.limits.usd is not None and bound.cost is None:
            raise LimitError(
                f"the price of {model} is unknown, so limits.usd can't be kept; give its worker a price",
                limit="usd",
                needed=Decimal("Infinity"),
                left=self.limits.usd - self.spent.usd,
            )


def _come(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)


def _shown(amount: Decimal | int, digits: Context | None = None) -> str:
    """Dollars in so many digits, or exactly; what can be counted, exactly."""
    if isinstance(amount, int):
        return str(amount)
    return f"{digits.create_decimal(amount) if digits else amount:f}"
