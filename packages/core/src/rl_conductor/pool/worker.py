"""`Worker`: a model with a name in the pool, a card, and settings for its calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol, Self, runtime_checkable

from rl_conductor._internal.sync import PerLoop
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model, model
from rl_conductor.models.reply import ReasoningMemory
from rl_conductor.trace.trace import WorkerSetup
from rl_conductor.types import Card, Sampling
from rl_conductor.workflow.limits import DEFAULT_OUTPUT_TOKENS


@runtime_checkable
class Described(Protocol):
    """A model that says itself what it is for, such as an agent; its worker's card then says so too."""

    @property
    def description(self) -> str:
        """What it is and does."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A model with a name in the pool and the manner in which it is asked."""

    name: str
    model: Model
    card: Card
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=DEFAULT_OUTPUT_TOKENS))
    """Defaults; what the caller asks for goes before them in the final step."""
    timeout: float | None = 300.0
    """Seconds a call may take."""
    hedge_after: float | None = None
    """Seconds after which a second worker is asked as well, within `Limits.hedges`."""
    slots: PerLoop[asyncio.Semaphore] | None = field(default=None, compare=False, repr=False)
    """Bounds how many calls are in flight at once; `None` leaves them unbounded. A conductor's own calls take the
    slots of the workers that they go to, not its own."""
    reasoning: ReasoningMemory = field(default_factory=ReasoningMemory, compare=False, repr=False)
    """Where its model's replies were seen to begin."""

    @classmethod
    def of(
        cls,
        name: str,
        model_or_name: Model | str,
        *,
        description: str | None = None,
        card: Card | None = None,
        sampling: Sampling | None = None,
        timeout: float | None = 300.0,
        hedge_after: float | None = None,
        concurrency: int | None = None,
    ) -> Self:
        """A worker from a model or its `provider:name`; the card's name and price come from the two.

        The `description` tells the planner what the worker is for; without one, the card's or the model's own is used.

        Raises:
            ConfigError: there is no such model, or `concurrency` leaves room for no call.
        """
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"worker {name!r} with a concurrency of {concurrency} could never work; write 1 or more")
        made = model(model_or_name) if isinstance(model_or_name, str) else model_or_name
        if not isinstance(made, Model):
            raise ConfigError(f"worker {name!r} can't be {made!r}; give it a model, or 'provider:model'")
        told = (card or Card(name=name)).model_copy(update={"name": name})
        if told.price is None:
            told = told.model_copy(update={"price": made.price})
        if description is None and not told.description and isinstance(made, Described):
            description = made.description
        if description is not None:
            told = told.model_copy(update={"description": description})
        asked = sampling or Sampling()
        if asked.max_tokens is None:
            asked = asked.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})
        slots = None if concurrency is None else slots_for(concurrency)
        return cls(
            name=name,
            model=made,
            card=told,
            sampling=asked,
            timeout=timeout,
            hedge_after=hedge_after,
            slots=slots,
        )

    @cached_property
    def setup(self) -> WorkerSetup:
        """What a trace says of it."""
        able = self.model.capabilities.names
        return WorkerSetup(card=self.card, model=self.model.name, can=able, sampling=self.sampling)


def slots_for(count: int) -> PerLoop[asyncio.Semaphore]:
    """Makes the semaphore that bounds how many calls a worker has in flight, one for each event loop."""
    return PerLoop(partial(asyncio.Semaphore, count))
