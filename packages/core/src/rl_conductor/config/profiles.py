"""Profiles: named trade-offs between quality, latency and cost."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.workflow.limits import Limits

ProfileName = Literal["mini", "ultra"]
"""The names of the built-in profiles."""


@dataclass(frozen=True)
class Profile:
    """A named trade-off between quality, latency and cost."""

    name: str
    """The profile's name, which follows that of the conductor in names of models."""
    limits: Limits
    """The limits of runs."""
    economy: bool = False
    """Whether cheap and fast workers come first, so that they win ties and are used as fallback."""

    def ordered(self, pool: WorkerPool) -> WorkerPool:
        """Returns `pool` in the order that the profile prefers."""
        return WorkerPool(sorted(pool.values(), key=_expense)) if self.economy else pool

    def within(self, defaults: Limits) -> Limits:
        """Returns the profile's limits with at most `defaults.steps` steps, because tiny models fail at long plans."""
        return self.limits.model_copy(update={"steps": min(self.limits.steps, defaults.steps)})


MINI = Profile("mini", Limits.model_construct(steps=2, rounds=1, seconds=60.0), economy=True)
"""Few steps, no recursion, cheap workers first, a tight deadline."""
ULTRA = Profile("ultra", Limits.model_construct(steps=5, rounds=2))
"""Five steps and one recursion over all workers (paper)."""
PROFILES = {profile.name: profile for profile in (MINI, ULTRA)}


def profile_named(name: str) -> Profile:
    """Returns the built-in profile with this name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in PROFILES:
        raise ConfigError(f"no profile {name!r}: write {' or '.join(map(repr, PROFILES))}")
    return PROFILES[name]


def _expense(worker: Worker) -> tuple[Decimal, float]:
    """Returns the cost of a call with 1,000 input and 1,000 output tokens, and its latency."""
    price = worker.card.price
    cost = Decimal("Infinity") if price is None else price.cost(input_tokens=1_000, output_tokens=1_000)
    return cost, worker.card.latency or float("inf")
