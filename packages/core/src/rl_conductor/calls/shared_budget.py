"""`SharedBudget`: one budget for several runs, such as those of a batch or of a user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from rl_conductor.calls.budget import Amount, Budget
from rl_conductor.calls.scope import CallScope, current_scope
from rl_conductor.errors import ConfigError, LimitError
from rl_conductor.types import DecimalInput
from rl_conductor.workflow.limits import Limits


class SharedBudget:
    """A budget that several runs share, such as those of a batch or of a user.

    It holds for the runs that begin in a block of `applied`, in addition to their own limits, and counts their calls
    only. It can be used from several threads and event loops, but not from several processes.
    """

    def __init__(self, *, usd: DecimalInput | None = None, tokens: int | None = None, calls: int | None = None) -> None:
        """Creates a budget with nothing spent. What is left out is counted, but not limited.

        Args:
            usd: US dollars.
            tokens: tokens read and written.
            calls: calls to any model.

        Raises:
            pydantic.ValidationError: an amount is invalid, as for `Limits`.
        """
        self._budget = _BudgetOfRuns(Limits(usd=usd, tokens=tokens, calls=calls))

    @property
    def spending(self) -> Amount:
        """The `usd`, `tokens` and `calls` of the runs so far; an interrupted call counts with its upper bound."""
        return self._budget.spent

    @property
    def is_exhausted(self) -> bool:
        """Whether a call was refused because it might have exceeded the budget."""
        return self._budget.is_exhausted

    @contextmanager
    def applied(self) -> Iterator[Self]:
        """Makes the runs that begin in this block spend from the budget.

        Raises:
            ConfigError: another budget applies here already.
        """
        scope = current_scope.get()
        if scope.budget is not None and scope.budget is not self._budget:
            where = "a block of another SharedBudget" if isinstance(scope.budget, _BudgetOfRuns) else "a call of a run"
            raise ConfigError(f"applied() was called inside of {where}, whose budget applies; call it outside of that")
        token = current_scope.set(CallScope(self._budget) if scope.budget is None else scope)
        try:
            yield self
        finally:
            with suppress(ValueError):  # a generator may be closed in another context, in which nothing was set
                current_scope.reset(token)


class _BudgetOfRuns(Budget):
    """The budget around the runs, which notes whether it refused a call."""

    owner = "shared"
    limits_name = "SharedBudget"

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, surrounds_runs=True)
        self.is_exhausted = False

    def refuse_excess(self, model: str, amount: Amount) -> None:
        try:
            super().refuse_excess(model, amount)
        except LimitError:
            self.is_exhausted = True
            raise
