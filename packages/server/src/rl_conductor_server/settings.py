"""What `conductor.toml` says. Secrets never stand in it: keys by their hash, vendors' keys in the environment."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rl_conductor._internal.toml import read_toml
from rl_conductor.config.profiles import ProfileName
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool_file import PlannerEntry, PoolFile, WorkerEntry
from rl_conductor.types import Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
RouteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,47}$")]


def _named(written: object) -> object:
    """A model that is written as its `provider:name` alone."""
    return {"model": written} if isinstance(written, str) else written


AnyModel = Annotated[WorkerEntry, BeforeValidator(_named)]
"""`provider:name`, or a table as in `[workers.NAME]`."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetEntry(_Entry):
    """What may be spent."""

    usd: Decimal | None = Field(default=None, ge=0)
    """US dollars a period; runs on a worker without a known price are refused while this is set."""
    tokens: int | None = Field(default=None, ge=0)
    """Tokens a period, read and written."""
    per: Literal["day", "month", "ever"] = "month"
    """The period, by UTC."""


class KeyEntry(BudgetEntry):
    """An API key: `[keys.NAME]`."""

    sha256: Sha256
    """Of the key itself, in hex; `rl-conductor serve --new-key NAME` makes both."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    models: frozenset[str] | None = None
    """The models of ours that it may ask; `None` means all."""


class ProfileEntry(_Entry):
    """A model of ours: `[profiles.NAME]`."""

    base: ProfileName = "ultra"
    released: date
    """Part of its pinned name: change it whenever you change the rest."""
    limits: Limits = Limits()
    """What is written here goes before the base's."""
    policy: Policy | None = None
    """In place of the pool's own."""
    tiers: Path | None = None
    """In place of the pool's own: what sends simple requests to one call."""


class ShadowEntry(BudgetEntry):
    """A route's other side, asked the same beside it: `[routes.NAME.shadow]`."""

    share: float = Field(gt=0, le=1)
    """Of the route's answers, how many are compared."""
    judge: AnyModel | None = None
    """Who says which of two answers is better."""
    scorer: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """As `module:function`: it scores each answer, and decides before the judge wherever the scores differ."""
    concurrency: int = Field(default=4, ge=1)
    """Most answers that are compared at once; models on this machine have to serve users meanwhile."""

    @model_validator(mode="after")
    def _is_bounded_and_of_use(self) -> Self:
        if self.usd is None and self.tokens is None:
            raise ValueError("a shadow needs a budget of its own: write usd or tokens")
        if self.judge is None and self.scorer is None:
            raise ValueError("nobody compares the answers: write judge, scorer or both")
        return self


class Guards(Value):
    """What the answers of a canary must keep to; `None` leaves a thing unwatched."""

    errors: float | None = Field(default=0.05, ge=0, le=1)
    """Most of them that may be no answer, as a share."""
    losses: float | None = Field(default=0.5, ge=0, le=1)
    """Most of the judged ones that may be worse than the incumbent's, as a share."""
    p95_seconds: float | None = Field(default=None, gt=0)
    """The 95th percentile of their times."""
    usd: float | None = Field(default=None, gt=0)
    """US dollars an answer, on average."""
    window: int = Field(default=200, ge=10)
    """How many of the newest answers count."""
    least: int = Field(default=30, ge=5)
    """Minimum sample size before a guard can trip."""


class CanaryEntry(_Entry):
    """A route's answers that the conductor gives: `[routes.NAME.canary]`."""

    percent: float = Field(default=0.0, ge=0, le=100)
    guards: Guards = Guards()


class RouteEntry(_Entry):
    """A name behind which a model stands today, and perhaps a conductor tomorrow: `[routes.NAME]`."""

    released: date
    """Part of its pinned name: change it whenever you change the rest, and the trial begins anew."""
    incumbent: AnyModel
    """Who answers today."""
    conductor: str
    """Who may take its place: one of our models, such as `conductor-mini` or a profile."""
    shadow: ShadowEntry | None = None
    canary: CanaryEntry = CanaryEntry()


class StoreEntry(_Entry):
    """Where runs are kept: `[store]`."""

    url: str = "sqlite:///rl-conductor.db"
    retain_days: int = Field(default=30, ge=1)
    lease_seconds: float = Field(default=10.0, gt=0)
    """A process that is silent for so long counts as dead, and others may go on with its runs."""


class IntakeEntry(_Entry):
    """How much comes in at once: `[intake]`."""

    running: int = Field(default=64, ge=1)
    """Most runs at a time."""
    waiting: int = Field(default=128, ge=0)
    """Most runs that wait for a place; more are told to come back later."""
    body_bytes: int = Field(default=32 * 2**20, ge=1024)
    header_bytes: int = Field(default=64 * 2**10, ge=1024)
    client_seconds: float = Field(default=30.0, gt=0)
    """Seconds that a client may take to send its headers, then its body, and then to read each piece of the answer."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Seconds that runs in flight get once the server is told to stop."""


class Settings(_Entry):
    """The whole file; every table may be left out."""

    host: str = "127.0.0.1"
    port: int = Field(default=8100, ge=0, le=65535)
    pool: Path | None = None
    """A pool file; else `[workers]` here, else what `rl-conductor pool` finds on this machine."""
    planner: PlannerEntry | None = None
    workers: dict[str, WorkerEntry] = Field(default_factory=dict)
    profiles: dict[Name, ProfileEntry] = Field(default_factory=dict)
    routes: dict[RouteName, RouteEntry] = Field(default_factory=dict)
    keys: dict[Name, KeyEntry] = Field(default_factory=dict)
    admin_sha256: Sha256 | None = None
    """Of the key for `/admin`; without it there is no such thing."""
    store: StoreEntry = StoreEntry()
    intake: IntakeEntry = IntakeEntry()

    @property
    def inline_pool(self) -> PoolFile | None:
        """The pool that stands in the file itself."""
        return PoolFile(workers=self.workers, planner=self.planner) if self.workers else None


def read_settings(path: Path) -> Settings:
    """The checked content of a settings file.

    Raises:
        ConfigError: no such file, not TOML, or a wrong key; the message names it.
    """
    return checked(read_toml(path, Settings, "settings file"), path)


def checked(settings: Settings, path: Path) -> Settings:
    """`settings` with paths made relative to their file.

    Raises:
        ConfigError: two tables contradict each other.
    """
    if settings.pool and settings.workers:
        raise ConfigError(f"{str(path)!r} has both 'pool' and [workers]; keep one")
    if settings.planner and not settings.workers:
        raise ConfigError(
            f"{str(path)!r} has a [planner] but no [workers] beside it; the planner of a pool file stands there"
        )
    for name, other in combinations(settings.keys, 2):
        if settings.keys[name].sha256 == settings.keys[other].sha256:
            raise ConfigError(f"{str(path)!r}: keys.{name} and keys.{other} have one sha256; make a key for each")
    profiles = {name: _beside(path, entry) for name, entry in settings.profiles.items()}
    pool = None if settings.pool is None else path.parent / settings.pool
    return settings.model_copy(update={"pool": pool, "profiles": profiles})


def _beside(path: Path, entry: ProfileEntry) -> ProfileEntry:
    return entry if entry.tiers is None else entry.model_copy(update={"tiers": path.parent / entry.tiers})
