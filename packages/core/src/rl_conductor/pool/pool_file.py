"""Pool files: the TOML tables `[workers.NAME]` and `[planner]`, checked and built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_conductor._internal.toml import read_toml
from rl_conductor._internal.validation import problems
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model, model
from rl_conductor.plan_text.forms import Form
from rl_conductor.pool.worker import Worker, slots_for
from rl_conductor.types import Card, Price, Roster, Sampling
from rl_conductor.workflow.limits import PLAN_TOKENS
from rl_conductor.workflow.workflow import AccessMode

MAX_EXAMPLES = 4
"""Worked examples that the planner's prompt has."""


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
        slots = worker.slots if self.concurrency is None else slots_for(self.concurrency)
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
    examples: int = Field(default=3, ge=0, le=MAX_EXAMPLES)
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
