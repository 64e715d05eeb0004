"""`RunContext`: the state that all parts of one run share, from the first plan to the last model call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rl_conductor.calls.budget import Amount, Budget
from rl_conductor.calls.scope import current_scope
from rl_conductor.text.delimiters import new_delimiter_key
from rl_conductor.trace.events import Listener, ignore
from rl_conductor.trace.trace import Call, Charge
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

if TYPE_CHECKING:
    from rl_conductor.guardrails.base import Guardrail


@dataclass(kw_only=True)
class RunContext:
    """The limits, budget, clock, event listener and call settings of one run.

    A run inside of a model call of another run also spends from that run's budget.
    """

    limits: Limits = field(default_factory=Limits)
    emit: Listener = ignore
    """Called with every event of the run."""
    retries: int = 2
    """Maximum number of retries of a call whose failure is retryable."""
    keep_prompts: bool = True
    """Whether requests are kept in the trace, or only their fingerprints."""
    guardrails: Sequence[Guardrail] = ()
    """Checks of the run's input, prompts, replies and answer."""
    policies: tuple[Policy, ...] = ()
    """The policy of this run and of those around it, as far as they hold for nested runs."""
    deadline_name: str = "limits.seconds"
    """The limit that sets the deadline, for errors; `timeout` if that of the request is `limits.seconds`."""
    delimiter_key: str = field(default_factory=new_delimiter_key)
    """The key of the delimiters around text that models wrote."""
    all_guardrails: Sequence[Guardrail] = field(init=False)
    """With those of the runs around this one, which check the prompts and replies of its workers as well."""
    budget: Budget = field(init=False)
    began: float = field(default_factory=time.monotonic, init=False)
    """On the clock of `time.monotonic`."""

    def __post_init__(self) -> None:
        scope = current_scope.get()
        self.budget = Budget(self.limits, parent=scope.budget, outer_reservation=scope.reservation)
        self.budget.deadline_name = self.deadline_name
        self._set_deadline()
        self.all_guardrails = self.guardrails
        if scope.guardrails:
            inherited = (each for each in scope.guardrails if not any(each is own for own in self.guardrails))
            self.all_guardrails = (*self.guardrails, *inherited)

    @property
    def has_listener(self) -> bool:
        """Whether events reach anybody; frequent ones are only created if so."""
        return self.emit is not ignore

    def with_listener(self, emit: Listener) -> Self:
        """Returns a copy with another listener, which shares the budget and the clock."""
        context = copy(self)
        context.emit = emit
        return context

    def unguarded(self) -> Self:
        """Returns a copy for the calls that guardrails make, which no guardrail checks."""
        context = copy(self)
        context.guardrails = context.all_guardrails = ()
        context.keep_prompts = False
        return context

    def elapsed(self) -> float:
        """Returns the seconds since the run began."""
        return time.monotonic() - self.began

    def _set_deadline(self) -> None:
        if self.limits.seconds is not None:
            self.budget.deadline = self.began + self.limits.seconds

    def remaining(self, call_deadline: float | None = None) -> float | None:
        """Returns the seconds until the run's deadline or `call_deadline` (in seconds since the run began).

        `None` means that there is neither.
        """
        deadline = self.budget.shared_deadline()
        of_run = None if deadline is None else deadline.time - time.monotonic()
        if call_deadline is None:
            return of_run
        of_call = call_deadline - self.elapsed()
        return of_call if of_run is None else min(of_call, of_run)

    def deadline_after(self, share: float) -> float | None:
        """Returns the time at which `share` of the remaining time is over; `None` without a limit."""
        remaining = self.remaining()
        return None if remaining is None else self.elapsed() + share * max(remaining, 0.0)

    def charge_previous(self, calls: Iterable[Call]) -> None:
        """Charges calls that this run made in another process, and sets the clock back by the time they took."""
        for call in calls:
            charged = call.charged or Charge(usd=call.usage.cost, tokens=call.usage.total_tokens)
            self.budget.charge(Amount(charged.usd, charged.tokens, call.usage.calls))
            self.began = min(self.began, time.monotonic() - call.started - call.seconds)
        if self.budget.deadline is not None:  # a replay has none
            self._set_deadline()
