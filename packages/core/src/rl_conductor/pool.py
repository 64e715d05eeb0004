"""The workers: `Worker`, `WorkerPool`, and where pools come from (code, a TOML file).

A pool knows nothing of plans. What is found in the environment is in `discovery`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from rl_conductor.errors import ConfigError
from rl_conductor.limits import DEFAULT_OUTPUT_TOKENS, PLAN_TOKENS
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.plan import Form
from rl_conductor.prompts import EXAMPLES, Roster
from rl_conductor.reply import ReasoningMemory
from rl_conductor.sync import PerLoop
from rl_conductor.toml import read_toml
from rl_conductor.trace import WorkerSetup
from rl_conductor.types import Card, Price, Sampling
from rl_conductor.workflow import AccessMode


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
        card: Card | None = None,
        sampling: Sampling | None = None,
        timeout: float | None = 300.0,
        hedge_after: float | None = None,
        concurrency: int | None = None,
    ) -> Self:
        """A worker from a model or its `provider:name`; the card's name and price come from the two.

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
        asked = sampling or Sampling()
        if asked.max_tokens is None:
            asked = asked.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})
        slots = None if concurrency is None else PerLoop(partial(asyncio.Semaphore, concurrency))
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


class WorkerPool(Mapping[str, Worker]):
    """Workers by name, in a fixed order: a worker's position is the number by which the Conductor knows it."""

    def __init__(self, workers: Iterable[Worker] | Mapping[str, Worker | Model | str]) -> None:
        """Workers, or models (or their `provider:name`) by the names they shall have.

        Raises:
            ConfigError: no worker at all, two of one name, or something that is none.
        """
        if isinstance(workers, Mapping):
            workers = [_called(name, one) for name, one in workers.items()]
        self._workers: dict[str, Worker] = {}
        for worker in workers:
            if not isinstance(worker, Worker):
                raise ConfigError(f"{worker!r} has no name to be a worker by; write {{'name': {worker!r}}}")
            if worker.name in self._workers:
                raise ConfigError(f"two workers are called {worker.name!r}; give each a name of its own")
            self._workers[worker.name] = worker
        if not self._workers:
            raise ConfigError("a pool needs at least one worker, such as WorkerPool({'fast': 'openai:gpt-5-mini'})")

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """The pool that a TOML file describes; see `docs/pools.md` for its keys.

        Raises:
            ConfigError: no such file, not TOML, or an unknown or ill-typed key; the message names it.
        """
        return cls(read_pool_file(path).build())

    @property
    def cards(self) -> tuple[Card, ...]:
        """What is known of each worker, in order."""
        return tuple(worker.card for worker in self._workers.values())

    @property
    def capabilities(self) -> Capabilities:
        """What at least one worker can take and do."""
        able = [worker.model.capabilities for worker in self._workers.values()]
        return Capabilities(
            tools=any(one.tools for one in able),
            images=any(one.images for one in able),
            files=any(one.files for one in able),
            json_schema=any(one.json_schema for one in able),
            grammar=any(one.grammar for one in able),
        )

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    async def aclose(self) -> None:
        """Close every model, even if one can't be closed; then its error is raised."""
        await close_all(worker.model for worker in self._workers.values())


async def close_all(models: Iterable[Model]) -> None:
    """Close each of `models`, whatever comes of the others; the first error is raised afterwards."""
    failed: list[Exception] = []
    for one in models:
        try:
            await one.aclose()
        except Exception as error:  # it is raised below
            failed.append(error)
    if failed:
        raise failed[0]


def _called(name: str, given: Worker | Model | str) -> Worker:
    if not isinstance(given, Worker):
        return Worker.of(name, given)
    return replace(given, name=name, card=given.card.model_copy(update={"name": name}))


# ---------------------------------------------------------------------------------------- TOML file


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ModelEntry(_Entry):
    """A model in a pool file."""

    model: str
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the adapter, such as `base_url`; never a key: keys belong in the environment."""
    price: Price | None = None
    """Overrides the price that is looked up."""
    tags: frozenset[str] = frozenset()
    region: str | None = None

    def build(self) -> Model:
        """The model itself."""
        if "api_key" in self.options:
            raise ConfigError(f"{self.model}: a key must not stand in a file; set it in the environment")
        options = self.options if self.price is None else {**self.options, "price": self.price}
        try:
            return model(self.model, **options)
        except TypeError as wrong:
            raise ConfigError(f"{self.model}: its options don't fit: {wrong}") from wrong


class WorkerEntry(ModelEntry):
    """A worker in a pool file: `[workers.NAME]`."""

    strengths: str = ""
    accuracy: dict[str, float] = Field(default_factory=dict)
    latency: float | None = None
    sampling: Sampling = Field(default_factory=Sampling)
    timeout: float = Field(default=300.0, gt=0)
    hedge_after: float | None = Field(default=None, ge=0)
    concurrency: int | None = Field(default=None, ge=1)


class PlanManner(_Entry):
    """How plans are asked for. A trained planner must be asked as it was trained."""

    form: Form | None = None
    """How plans are spelled; `None` takes what the model can be held to."""
    roster: Roster = "cards"
    examples: int = Field(default=3, ge=0, le=len(EXAMPLES))
    """Worked examples in the prompt; a trained planner mostly needs none."""
    access: AccessMode = "binary"
    max_tokens: int = Field(default=PLAN_TOKENS, ge=1)
    """Most tokens of a plan; a longer one is no plan."""


class PlannerEntry(ModelEntry, PlanManner):
    """Who plans, in a pool file: `[planner]`."""

    steps: int = Field(default=5, ge=1)
    """Most steps of a plan, unless a caller's limits say otherwise."""
    temperature: float | None = Field(default=None, ge=0)
    samples: int = Field(default=5, ge=1)
    """Most plans that are drawn until one may run."""


class PoolFile(_Entry):
    """A pool file: `[workers.NAME]` tables, and optionally `[planner]`."""

    workers: dict[str, WorkerEntry]
    planner: PlannerEntry | None = None
    tiers: Path | None = None
    """What sends simple requests to one call; `rl-conductor calibrate --tiers` makes it."""

    def build(self) -> list[Worker]:
        """The workers, in the order of the file."""
        return [_worker(name, entry) for name, entry in self.workers.items()]


def read_pool_file(path: str | Path) -> PoolFile:
    """The checked content of a pool file.

    Raises:
        ConfigError: no such file, not TOML, or an unknown or ill-typed key; the message names it.
    """
    content = read_toml(path, PoolFile, "pool file")
    if content.tiers is None:
        return content
    return content.model_copy(update={"tiers": Path(path).parent / content.tiers})


def _worker(name: str, entry: WorkerEntry) -> Worker:
    card = Card(
        name=name,
        strengths=entry.strengths,
        accuracy=entry.accuracy,
        latency=entry.latency,
        tags=entry.tags,
        region=entry.region,
    )
    return Worker.of(
        name,
        entry.build(),
        card=card,
        sampling=entry.sampling,
        timeout=entry.timeout,
        hedge_after=entry.hedge_after,
        concurrency=entry.concurrency,
    )
