"""One answer that somebody wants, and on what terms: the tightest of all policies and limits."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass, field

from rl_conductor.calls.budget import Amount, Budget
from rl_conductor.errors import RunError
from rl_conductor.planning.prompts import prompt_in
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor_server.auth.budgets import ANY_DEPTH, Purse
from rl_conductor_server.catalog import Served
from rl_conductor_server.errors import ApiError
from rl_conductor_server.extension import both, check_selectors, limits_of, tightest
from rl_conductor_server.protocol import Ask
from rl_conductor_server.store import NewRun

SHADOW, JUDGE = "shadow", "judge"
"""The `api` of runs that the server makes beside those that it was asked for."""
MANNER: dict[str, bool | set[str]] = {"stream": True, "usage_in_stream": True, "extension": {"trace", "progress"}}
"""How an answer is told, which does not decide what it is: a retry may ask for it in another manner."""


class SharedLimits:
    """The limits of a request that wants several answers: they hold for all of its runs together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits.model_copy(update={"depth": ANY_DEPTH})
        self.spent = Amount()
        """What was spent before any run began, by another process or under the same `Idempotency-Key`."""
        self._ledger: Budget | None = None

    def charge(self, amount: Amount) -> None:
        """Count what earlier attempts at one of the answers have spent."""
        self.spent += amount
        if self._ledger is not None:
            self._ledger.charge(amount)

    def ledger(self) -> Budget:
        """What all runs spend on, inside of what encloses the first; the clock starts with that one."""
        if self._ledger is None:
            self._ledger = Budget(self._limits)
            self._ledger.charge(self.spent)
            if self._limits.seconds is not None:
                self._ledger.deadline = time.monotonic() + self._limits.seconds
        return self._ledger


@dataclass(frozen=True)
class Asked:
    """One of the answers that a request wants."""

    account: Purse
    served: Served
    api: str
    ask: Ask
    policy: Policy
    limits: Limits
    name: str | None = None
    """The request's `Idempotency-Key`."""
    choice: int = 0
    shared: SharedLimits | None = field(default=None, compare=False)
    """`None` for the only answer to a request: its run has the limits for itself."""

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the answer."""
        said = self.ask.model_dump_json(exclude=MANNER)
        return hashlib.sha256(f"{self.api} {said}".encode()).hexdigest()

    @property
    def request(self) -> Request:
        """What this choice asks: the same seed must not give the same answer several times."""
        sampling = self.ask.request.sampling
        changed: dict[str, object] = {}
        if sampling.seed is not None and self.choice:
            changed["seed"] = sampling.seed + self.choice
        if self.served.side == "incumbent" and self.ask.effort:  # it means the model's own, as nothing is orchestrated
            changed["effort"] = self.ask.effort
        if not changed:
            return self.ask.request
        return self.ask.request.model_copy(update={"sampling": sampling.model_copy(update=changed)})

    @property
    def question(self) -> str:
        """What the user said last."""
        return prompt_in(self.request.messages)

    @property
    def is_beside(self) -> bool:
        """Whether no user waits for it, nor comes back for it."""
        return self.api in (SHADOW, JUDGE)

    @property
    def counted_as(self) -> str:
        """Its model in metrics, where what nobody waited for must not stand among what users got."""
        return f"{self.served.name} ({self.api})" if self.is_beside else self.served.name

    def used(self, trace: Trace) -> Amount:
        """What counts towards the limits at the end of its run."""
        return Amount.of(trace.usage) if self.shared is None else self.shared.ledger().spent

    def check_shared(self, error: RunError) -> None:
        """Raise `ApiError` if the run has no answer because the request's answers together came to a limit."""
        last = next(reversed(list(error.trace.calls())), None)
        if self.shared is None or last is None:
            return
        message = f"the limits hold for all {self.ask.choices} choices together: {last.error}"
        if last.outcome == "refused":
            raise ApiError(message, status=400, code="limit_exceeded") from error
        if last.outcome == "timeout" and not last.retryable:  # not the model's own timeout, but the deadline
            raise ApiError(message, status=504, code="deadline_exceeded") from error

    def new_run(self) -> NewRun:
        """Its record before it begins."""
        return NewRun(
            id=f"run-{secrets.token_hex(8)}",
            key=self.account.name,
            idempotency=self.name,
            choice=self.choice,
            digest=self.digest,
            api=self.api,
            model=self.served.pinned,
            created=time.time(),
            labels=self.ask.labels,
            question=self.question if self.ask.keep else "",
            side=self.served.side,
        )


def on_terms(account: Purse, served: Served, api: str, ask: Ask, *, name: str | None) -> list[Asked]:
    """Every answer that `ask` wants, under the tightest of all policies and limits.

    Raises:
        ConductorError: they can't be met.
    """
    made = served.conductor
    asked = ask.extension.policy
    if asked is not None:
        check_selectors(asked, served.sides)
    policy = both(made.policy, asked, made.pool.cards, planner=made.planner.card)
    limits = tightest(made.limits, limits_of(ask.effort), ask.extension.limits)
    policy.space(made.pool.cards, max_steps=limits.steps)
    shared = SharedLimits(limits) if ask.choices > 1 else None
    return [Asked(account, served, api, ask, policy, limits, name, choice, shared) for choice in range(ask.choices)]
