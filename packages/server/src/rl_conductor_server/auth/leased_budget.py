"""A key's budget of one period, of which this process spends a share that it leases from the store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from decimal import Decimal

from rl_conductor.calls.budget import NOTHING, Amount, Budget, Reservation
from rl_conductor.errors import LimitError
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.store import BudgetPeriod, BudgetState, Store, StoreUnavailableError

ROUNDING = Amount(usd=Decimal("1e-6"))
"""More than the roundings of stored charges add up to; a call that misses the limit by less waits for nothing."""
STORE = "store"
"""The `limit` of a `LimitError` for a call that can't be recorded, because the store does not answer."""
INITIAL_POLL, MAX_POLL = 0.1, 2.0
"""Seconds between requests for a larger share while other processes have the rest of the budget."""


class LeasedBudget(Budget):
    """Reserves calls against this process's share, and extends the share when it is used up.

    A share covers the calls that wait for it and at most twice what is in flight, so that few calls of a busy process
    wait for the store, and a process that dies leaves little in doubt. `return_unused` shrinks it again.
    """

    owner = "key"

    def __init__(self, period: BudgetPeriod, store: Store, state: BudgetState) -> None:
        super().__init__(Limits(usd=period.usd, tokens=period.tokens), surrounds_runs=True)
        self._period = period
        self._store = store
        self._share = NOTHING
        self._loop = asyncio.get_running_loop()
        self._extension = asyncio.Lock()
        self._queued = NOTHING
        """The calls that wait for an extension."""
        self._earlier = state.charged_here
        """Charges of the process from before this object was created."""
        self._elsewhere = state.charged_elsewhere

    @property
    def spent_in_total(self) -> Amount:
        """The spending of all processes, as far as it is known here."""
        return self.spent + self._earlier + self._elsewhere

    def fits(self, amount: Amount) -> bool:
        """Whether the share covers another call of `amount`."""
        return self._period.covers(self.spent + self.reserved + amount, within=self._share)

    async def make_room(self, reservation: Reservation) -> None:
        """Extends the share in the server's event loop.

        Raises:
            LimitError: the budget would not cover the call with no other in flight, or the store does not answer, so
                that the call would be made off the books.
        """
        try:
            if asyncio.get_running_loop() is self._loop:
                await self._extend(reservation)
            else:
                extending = asyncio.run_coroutine_threadsafe(self._extend(reservation), self._loop)
                await asyncio.wrap_future(extending)
        except StoreUnavailableError as error:
            raise LimitError(str(error), limit=STORE, needed=0, remaining=0, owner=self.owner) from error

    async def _extend(self, reservation: Reservation) -> None:
        """Waits until the share covers the reservation.

        Raises:
            LimitError: the budget would not cover it with no other call in flight.
            StoreUnavailableError: the store does not answer.
        """
        amount, poll = reservation.amount, INITIAL_POLL
        self._queued += amount
        try:
            async with self._extension:
                while not self.fits(amount):
                    state = await self._request(amount)
                    if state.added != NOTHING:
                        continue
                    is_final = poll > INITIAL_POLL and self.reserved == state.leased_elsewhere == NOTHING
                    self.refuse_excess(reservation.model, amount + ROUNDING if is_final else amount)
                    self.return_unused()  # another process may need less than this one
                    with self.lock:
                        release = self.next_release()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(release, poll)
                    poll = min(2 * poll, MAX_POLL)
        finally:
            self._queued -= amount

    async def _request(self, amount: Amount) -> BudgetState:
        """Requests the amount that is missing for a call."""
        missing = self.spent + self.reserved + amount - self._share
        state = await self._store.extend_budget(self._period, missing, ahead=self.reserved + self._queued - amount)
        self._elsewhere = state.charged_elsewhere
        with self.lock:
            self._share += state.added
        return state

    def describe_excess(
        self,
        model: str,  # noqa: ARG002 - the caller did not choose it
        limit: str,
        needed: Decimal | int,
        remaining: Decimal | int,
    ) -> str:
        """States the remaining budget, because the caller can't raise the limit."""
        remaining = max(remaining, 0)
        if limit == "usd":
            return f"${remaining:f} is left of this key's budget, but the next call may cost up to ${needed:f}"
        return f"{remaining:,} tokens are left of this key's budget, but the next call may use up to {needed:,}"

    def describe_unpriced(self, model: str) -> str:
        """Says why the price is needed."""
        return f"this key has a budget in US dollars, but {super().describe_unpriced(model)}"

    def return_unused(self, *, is_closing: bool = False) -> None:
        """Gives back all but twice the need of the calls in flight; when closing, everything that is not spent."""
        with self.lock:
            needed = self.spent if is_closing else self.spent + self.reserved + self.reserved
            unused = Amount(
                max(self._share.usd - needed.usd, 0 * needed.usd), max(self._share.tokens - needed.tokens, 0)
            )
            self._share -= unused
        if unused != NOTHING:
            self._store.return_budget(self._period, unused)

    async def refresh(self) -> None:
        """Reads the spending of other processes."""
        self._elsewhere = (await self._store.read_budget(self._period)).charged_elsewhere
