"""One answer that somebody wants, and on what terms: the tightest of all policies and limits."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from rl_conductor.limits import Limits
from rl_conductor.policy import Policy
from rl_conductor.server.extensions import both, limits_of, tightest
from rl_conductor.server.keys import Account
from rl_conductor.server.profiles import Served
from rl_conductor.server.wire import Ask
from rl_conductor.store import NewRun
from rl_conductor.types import Request

MANNER: dict[str, bool | set[str]] = {"stream": True, "usage_in_stream": True, "extension": {"trace", "progress"}}
"""How an answer is told, which does not decide what it is: a retry may ask for it in another manner."""


@dataclass(frozen=True)
class Asked:
    """One of the answers that a request wants."""

    account: Account
    served: Served
    api: str
    ask: Ask
    policy: Policy
    limits: Limits
    name: str | None = None
    """The request's `Idempotency-Key`."""
    choice: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the answer."""
        said = self.ask.model_dump_json(exclude=MANNER)
        return hashlib.sha256(f"{self.api} {said}".encode()).hexdigest()

    @property
    def request(self) -> Request:
        """What this choice asks: the same seed must not give the same answer several times."""
        sampling = self.ask.request.sampling
        if sampling.seed is None or not self.choice:
            return self.ask.request
        another = sampling.model_copy(update={"seed": sampling.seed + self.choice})
        return self.ask.request.model_copy(update={"sampling": another})

    @property
    def _question(self) -> str:
        """What the user said last."""
        return next((said.text for said in reversed(self.request.messages) if said.role == "user"), "")

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
            question=self._question if self.ask.keep else "",
        )


def on_terms(account: Account, served: Served, api: str, ask: Ask, *, name: str | None) -> list[Asked]:
    """Every answer that `ask` wants, under the tightest of all policies and limits.

    Raises:
        ConductorError: they can't be met.
    """
    made = served.conductor
    policy = both(made.policy, ask.extension.policy, made.pool.cards)
    limits = tightest(made.limits, limits_of(ask.effort), ask.extension.limits)
    policy.space(made.pool.cards, max_steps=limits.steps)
    return [Asked(account, served, api, ask, policy, limits, name, choice) for choice in range(ask.choices)]
