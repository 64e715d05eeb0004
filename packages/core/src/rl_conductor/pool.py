"""The workers: `Worker`, `WorkerPool`, and where pools come from (code, a TOML file).

A pool knows nothing of plans. What is found in the environment is in `discovery`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.invalid import problems
from rl_conductor.limits import DEFAULT_OUTPUT_TOKENS, PLAN_TOKENS
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.plan import Form
from rl_conductor.prompts import EXAMPLES
from rl_conductor.reply import ReasoningMemory
from rl_conductor.roster import Roster, indistinguishable
from rl_conductor.sync import PerLoop
from rl_conductor.toml import read_toml
from rl_conductor.trace import WorkerSetup
from rl_conductor.types import Card, Price, Sampling
from rl_conductor.workflow import AccessMode

log = logging.getLogger("rl_conductor")


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
        slots = None if concurrency is None else _slots(concurrency)
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


AnyWorker = Worker | Model | str | Mapping[str, Any]
"""A worker, a model, its `provider:model`, or one of the two last with what is known of it, as in
`{"model": "openai:gpt-5", "description": "checks numbers"}`; the keys are those of a worker in a pool file."""


class WorkerPool(Mapping[str, Worker]):
    """Workers by name, in a fixed order: a worker's position is the number by which the Conductor knows it."""

    def __init__(self, workers: Iterable[Worker] | Mapping[str, AnyWorker]) -> None:
        """Workers, or models (or their `provider:name`, or entries with a description) by the names they shall have.

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


def warn_of_lookalikes(pool: WorkerPool) -> None:
    """Logs a warning, once for each set of names, about workers that a planner can't tell apart by their cards."""
    for names in indistinguishable(pool.cards):
        _warn_of(names)


@lru_cache(maxsize=256)
def _warn_of(names: tuple[str, ...]) -> None:
    """Warn once that the planner can't choose between these workers."""
    log.warning(
        "workers %s are described alike, so the planner can't choose between them; say what each is for, "
        "as in {%r: {'model': ..., 'description': 'checks numbers'}}",
        ", ".join(map(repr, names)),
        names[0],
    )


def _called(name: str, given: AnyWorker) -> Worker:
    if isinstance(given, Mapping):
        return worker_from(name, given, _called)
    if not isinstance(given, Worker):
        return Worker.of(name, given)
    return replace(given, name=name, card=given.card.model_copy(update={"name": name}))


def worker_from(name: str, entry: Mapping[str, Any], worker_of: Callable[[str, Any], Worker]) -> Worker:
    """The worker of an entry such as `{"model": ..., "description": ...}`.

    Args:
        name: what it is called in the pool.
        entry: what a pool file could say of it; but its `model` may be an object.
        worker_of: makes a worker of such an object.

    Raises:
        ConfigError: an unknown or ill-typed key; the message names it.
    """
    by_name = isinstance(entry.get("model", ""), str)
    try:
        if by_name:
            return PoolFile.model_validate({"workers": {name: entry}}).build()[0]
        settings = WorkerSettings.model_validate({key: value for key, value in entry.items() if key != "model"})
    except ValidationError as error:
        wrong = "; ".join(map(str, problems(error, below=2 if by_name else 0)))
        raise ConfigError(f"worker {name!r} is wrong: {wrong}") from None
    return settings.applied_to(worker_of(name, entry["model"]))


def _slots(count: int) -> PerLoop[asyncio.Semaphore]:
    return PerLoop(partial(asyncio.Semaphore, count))


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


class WorkerSettings(_Entry):
    """What is known of a worker, and how it is asked."""

    description: str = ""
    """What it is and does."""
    strengths: str = ""
    accuracy: dict[str, float] = Field(default_factory=dict)
    latency: float | None = None
    tags: frozenset[str] = frozenset()
    region: str | None = None
    sampling: Sampling = Field(default_factory=Sampling)
    timeout: float = Field(default=300.0, gt=0)
    hedge_after: float | None = Field(default=None, ge=0)
    concurrency: int | None = Field(default=None, ge=1)

    def applied_to(self, worker: Worker) -> Worker:
        """`worker` with what is set here in place of its own."""
        known = {name: getattr(self, name) for name in self.model_fields_set}
        card = worker.card.model_copy(update={name: known[name] for name in known.keys() & Card.model_fields.keys()})
        slots = worker.slots if self.concurrency is None else _slots(self.concurrency)
        asked = {name: known[name] for name in known.keys() & {"timeout", "hedge_after"}}
        sampling = worker.sampling
        if "sampling" in known:
            most = self.sampling.max_tokens or sampling.max_tokens
            sampling = self.sampling.model_copy(update={"max_tokens": most})
        return replace(worker, card=card, sampling=sampling, slots=slots, **asked)


class WorkerEntry(ModelEntry, WorkerSettings):
    """A worker in a pool file: `[workers.NAME]`."""


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
        return [entry.applied_to(Worker.of(name, entry.build())) for name, entry in self.workers.items()]


def read_pool_file(path: str | Path) -> PoolFile:
    """The checked content of a pool file.

    Raises:
        ConfigError: no such file, not TOML, or an unknown or ill-typed key; the message names it.
    """
    content = read_toml(path, PoolFile, "pool file")
    if content.tiers is None:
        return content
    return content.model_copy(update={"tiers": Path(path).parent / content.tiers})
