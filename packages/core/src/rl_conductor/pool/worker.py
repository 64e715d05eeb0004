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
    """A model with a description of its own, such as an agent, which becomes the default description of its worker."""

    @property
    def description(self) -> str:
        """The model's purpose and skills."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A model with a name in the pool, a card, and settings for its calls."""

    name: str
    model: Model
    card: Card
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=DEFAULT_OUTPUT_TOKENS))
    """Default sampling parameters; the caller's take precedence in the final step."""
    timeout: float | None = 300.0
    """Seconds for one call."""
    hedge_after: float | None = None
    """Seconds after which a hedge call goes to a second worker, within `Limits.hedges`."""
    slots: PerLoop[asyncio.Semaphore] | None = field(default=None, compare=False, repr=False)
    """Semaphore that limits concurrent calls; `None` means no limit. Calls of a conductor in the pool take the slots
    of its workers instead."""
    reasoning: ReasoningMemory = field(default_factory=ReasoningMemory, compare=False, repr=False)
    """Remembers whether the replies of its model begin inside reasoning."""

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
        """Creates a worker from a model or its `provider:model` name.

        Args:
            name: the worker's name, which replaces the card's.
            model_or_name: a model or its `provider:model` name.
            description: the worker's purpose, for the planner; by default the card's or the model's own.
            card: the worker's card; its price defaults to the model's.
            sampling: default sampling parameters of its calls.
            timeout: seconds for one call.
            hedge_after: seconds after which a hedge call goes to a second worker.
            concurrency: maximum number of concurrent calls.

        Raises:
            ConfigError: the model does not exist, or `concurrency` is less than 1.
        """
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"worker {name!r}: concurrency={concurrency} allows no call; write 1 or more")
        worker_model = model(model_or_name) if isinstance(model_or_name, str) else model_or_name
        if not isinstance(worker_model, Model):
            raise ConfigError(f"worker {name!r}: {worker_model!r} is not a model; pass a model or 'provider:model'")
        card = (card or Card(name=name)).model_copy(update={"name": name})
        if card.price is None:
            card = card.model_copy(update={"price": worker_model.price})
        if description is None and not card.description and isinstance(worker_model, Described):
            description = worker_model.description
        if description is not None:
            card = card.model_copy(update={"description": description})
        sampling = sampling or Sampling()
        if sampling.max_tokens is None:
            sampling = sampling.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})
        slots = None if concurrency is None else slots_for(concurrency)
        return cls(
            name=name,
            model=worker_model,
            card=card,
            sampling=sampling,
            timeout=timeout,
            hedge_after=hedge_after,
            slots=slots,
        )

    @cached_property
    def setup(self) -> WorkerSetup:
        """The card and settings that are stored in traces."""
        return WorkerSetup(
            card=self.card, model=self.model.name, can=self.model.capabilities.names, sampling=self.sampling
        )


def slots_for(count: int) -> PerLoop[asyncio.Semaphore]:
    """Creates a semaphore for each event loop that limits a worker to `count` concurrent calls."""
    return PerLoop(partial(asyncio.Semaphore, count))
