"""Profiles: named balances of quality against time and money."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.workflow.limits import Limits

ProfileName = Literal["mini", "ultra"]
"""The profiles that can be asked for by name."""


@dataclass(frozen=True)
class Profile:
    """A named balance of quality against time and money."""

    name: str
    limits: Limits
    economy: bool = False
    """List cheap and fast workers first, so that ties and fall-backs go to them."""

    def ordered(self, pool: WorkerPool) -> WorkerPool:
        """`pool` in the order that this profile prefers."""
        return WorkerPool(sorted(pool.values(), key=_expense)) if self.economy else pool

    def within(self, usual: Limits) -> Limits:
        """Its limits, with plans no longer than `usual` for a pool: tiny models are lost in long ones."""
        return self.limits.model_copy(update={"steps": min(self.limits.steps, usual.steps)})


MINI = Profile("mini", Limits.model_construct(steps=2, rounds=1, seconds=60.0), economy=True)
"""Few steps, no recursion, cheap workers first, a tight deadline."""
ULTRA = Profile("ultra", Limits.model_construct(steps=5, rounds=2))
"""Five steps and one recursion over all workers (paper)."""
PROFILES = {profile.name: profile for profile in (MINI, ULTRA)}


def profile_named(name: str) -> Profile:
    """The profile of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in PROFILES:
        raise ConfigError(f"no profile {name!r}: write {' or '.join(map(repr, PROFILES))}")
    return PROFILES[name]


def _expense(worker: Worker) -> tuple[Decimal, float]:
    """What a call of a thousand tokens either way costs, and how long it takes."""
    price = worker.card.price
    cost = Decimal("Infinity") if price is None else price.cost(input_tokens=1_000, output_tokens=1_000)
    return cost, worker.card.latency or float("inf")
