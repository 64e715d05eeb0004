"""The schema of `server.toml`. It contains no secrets: API keys are hashed, vendors' keys are in the environment."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rl_conductor._internal.toml import read_toml
from rl_conductor.config.profiles import ProfileName
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool_file import GuardrailEntry, PlannerEntry, PoolFile, WorkerEntry
from rl_conductor.types import Value
from rl_conductor.workflow.limits import MAX_LIMIT, Limits
from rl_conductor.workflow.policy import Policy

MAX_USD = 10**9
"""Maximum budget of a period in US dollars: larger amounts don't fit into the sums of the store."""
USD_DECIMALS = 12
"""Decimal places of dollars in the store."""
MAX_RATE, MAX_CACHE_SECONDS = 10**6, 10**9
"""Maximum requests a minute, and maximum age of a cached answer."""
SIGN_IN_SECONDS = 600
"""Time to sign in at an OpenID Connect provider."""
Period = Literal["day", "month", "ever"]
NAME_FORM = "a name of up to {} letters, digits, '_', '.' and '-', the first of them a letter or a digit"
EntryName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description=NAME_FORM.format(64))]
ExperimentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,47}$", description=NAME_FORM.format(48))]


def _check_hash(text: str) -> str:
    """Rejects text that is no SHA-256, such as a key itself, without repeating it."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("write the SHA-256 of a key in 64 digits, as 'rl-conductor serve --new-key NAME' prints it")
    return text


Sha256 = Annotated[str, AfterValidator(_check_hash)]
PRINTED_HASH = "the line that 'rl-conductor serve --new-key NAME' prints"
ORIGIN = re.compile(r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?")
"""The header `Origin` of a website: browsers leave out the port that its scheme implies."""


def _check_origin(text: str) -> str:
    """Rejects `*`, and text that browsers never send as the origin of a website: it would have no effect."""
    if not ORIGIN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no origin; write scheme://host or scheme://host:port as browsers do: in lower case, without "
            "a path, and without the port that the scheme implies, such as 'https://app.example.com'"
        )
    return text


Origin = Annotated[str, AfterValidator(_check_origin)]


def _expand_name(value: object) -> object:
    """Expands `provider:name` to a table."""
    return {"model": value} if isinstance(value, str) else value


ModelEntry = Annotated[WorkerEntry, BeforeValidator(_expand_name)]
"""`provider:name`, or a table like `[workers.NAME]`."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BudgetEntry(_Entry):
    """A spending limit for a period."""

    usd: Decimal | None = Field(default=None, ge=0, le=MAX_USD, decimal_places=USD_DECIMALS)
    """US dollars a period. While this is set, calls of workers without a known price are rejected."""
    tokens: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    """Input and output tokens a period."""
    per: Period = "month"
    """The period, in UTC."""


class KeyLimits(BudgetEntry):
    """The limits of an API key, from the settings file or created at run time."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=MAX_RATE)
    cache_seconds: int | None = Field(default=None, ge=1, le=MAX_CACHE_SECONDS)
    """How old an answer may be that is repeated for the same request of this key; `None` disables the cache."""
    models: frozenset[str] | None = None
    """The models that it has access to; `None` means all."""
    metrics: bool = False
    """Allows reading `/metrics`, which covers the requests of all keys."""


class KeyEntry(KeyLimits):
    """An API key: `[keys.NAME]`."""

    sha256: Sha256 = Field(examples=[PRINTED_HASH])
    """SHA-256 of the key, in hex; `rl-conductor serve --new-key NAME` generates both."""


class AdminEntry(_Entry):
    """The key of an administrator: `[admins.NAME]`."""

    sha256: Sha256 = Field(examples=[PRINTED_HASH])
    """SHA-256 of the administrator's key, in hex."""


class ServedModelEntry(_Entry):
    """A model that the server offers: `[models.NAME]`."""

    profile: ProfileName = "ultra"
    released: date = Field(examples=["a date, such as released = 2026-01-31"])
    """Part of its pinned name. Change it whenever you change the rest."""
    limits: Limits = Limits()
    """Limits that replace those of the profile."""
    policy: Policy | None = None
    """A policy that replaces the pool's own."""
    router: Path | None = None
    """A router that replaces the pool's own; it sends simple requests to a single call."""


class ShadowEntry(BudgetEntry):
    """Runs of an experiment's other arm on the same requests, for comparison: `[experiments.NAME.shadow]`."""

    share: float = Field(gt=0, le=1)
    """The fraction of the experiment's answers that are compared."""
    judge: ModelEntry | None = None
    """The model that judges which of two answers is better."""
    scorer: str | None = Field(
        default=None, pattern=r"^[\w.]+:\w+$", examples=['module:function, such as scorer = "my_scorers:exact"']
    )
    """`module:function`, which scores each answer; the judge decides only if the scores are equal."""
    concurrency: int = Field(default=4, ge=1)
    """Maximum number of concurrent comparisons, as local models must serve users at the same time."""

    @model_validator(mode="after")
    def _has_budget_and_comparison(self) -> Self:
        if self.usd is None and self.tokens is None:
            raise ValueError("a shadow needs a budget of its own: write usd or tokens")
        if self.judge is None and self.scorer is None:
            raise ValueError("a shadow needs a way to compare answers: write judge, scorer or both")
        return self


class Guards(Value):
    """Conditions for the answers of a canary, which is rolled back otherwise; `None` disables a condition."""

    errors: float | None = Field(default=0.05, ge=0, le=1)
    """Maximum fraction of failed runs."""
    losses: float | None = Field(default=0.5, ge=0, le=1)
    """Maximum fraction of judged answers that are worse than the baseline's."""
    p95_seconds: float | None = Field(default=None, gt=0)
    """Maximum 95th percentile of run times, in seconds."""
    usd: float | None = Field(default=None, gt=0)
    """Maximum mean cost of an answer, in US dollars."""
    window: int = Field(default=200, ge=10)
    """The number of newest answers that are evaluated."""
    min_answers: int = Field(default=30, ge=5)
    """Minimum sample size before a guard can trip."""


class CanaryEntry(_Entry):
    """The part of an experiment's requests that the conductor answers: `[experiments.NAME.canary]`."""

    percent: float = Field(default=0.0, ge=0, le=100)
    guards: Guards = Guards()


class ExperimentEntry(_Entry):
    """A model that may be replaced by a conductor, step by step, under the same name: `[experiments.NAME]`."""

    released: date = Field(examples=["a date, such as released = 2026-01-31"])
    """Part of its pinned name. Change it whenever you change the rest; the comparison then starts again."""
    baseline: ModelEntry = Field(examples=['a model, such as baseline = "openai:gpt-6-sol"'])
    """The model that answers today."""
    conductor: str = Field(examples=['a model of this server, such as conductor = "conductor-mini"'])
    """The model that may replace it: a built-in one, such as `conductor-mini`, or one of `[models]`."""
    shadow: ShadowEntry | None = None
    canary: CanaryEntry = CanaryEntry()


class StoreEntry(_Entry):
    """The database of runs: `[store]`."""

    url: str = "sqlite:///rl-conductor.db"
    wait_seconds: float = Field(default=45.0, ge=0)
    """How long the server waits at its start for a database that does not answer yet."""
    retain_days: int = Field(default=30, ge=1)
    key_bytes: int = Field(default=8 * 2**30, ge=1024)
    """Maximum size of the traces and responses of a key; with more, only requests that store nothing are answered."""
    search_index: bool = True
    """Whether to add the texts of runs to an index, in SQLite: searches take less time, storing a run takes more."""
    lease_seconds: float = Field(default=10.0, ge=1)
    """Without a heartbeat for so long, a process counts as dead, and others may resume its runs; it sends five in that
    time."""


class IntakeEntry(_Entry):
    """Limits of incoming requests: `[intake]`."""

    running: int = Field(default=64, ge=1)
    """Maximum number of concurrent runs; if there are several keys, each has at most two thirds of them."""
    waiting: int = Field(default=128, ge=0)
    """Maximum number of queued runs; further ones are rejected with status 429."""
    body_bytes: int = Field(default=16 * 2**20, ge=1024)
    """Maximum size of a request."""
    total_body_bytes: int = Field(default=24 * 2**20, ge=1024)
    """Maximum size of all requests in progress together, each times its choices; they take about 25 times as much
    memory."""
    messages: int = Field(default=2_000, ge=1)
    """Maximum number of messages (or input items) of a request."""
    tools: int = Field(default=256, ge=0)
    """Maximum number of tools of a request."""
    parts: int = Field(default=4_000, ge=1)
    """Maximum number of content parts of all messages of a request, those of its history included."""
    values: int = Field(default=50_000, ge=100)
    """Maximum number of JSON values of a request, such as those of schemas and tools."""
    streams: int = Field(default=100, ge=1)
    """Maximum number of open pages and resumed streams of a key, which read the store at intervals."""
    connections: int | None = Field(default=None, ge=4)
    """Maximum number of connections of a process; by default three quarters of its open files, and at most 10,000.
    Beyond it, idle connections are closed. Three quarters of them may have a request in progress; if there are several
    keys, each may have two thirds of these."""
    header_bytes: int = Field(default=64 * 2**10, ge=1024)
    """Maximum size of the headers of a request; until it is complete, with its trailers and the framing of chunks."""
    client_seconds: float = Field(default=30.0, gt=0)
    """Timeout of a client, for sending its headers, for sending its body, and for reading each part of the response."""
    strict: bool = False
    """Rejects request fields that have no effect here, instead of listing them in `x-conductor-ignored`."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Seconds that runs in progress may still take after the shutdown signal."""


class BatchEntry(_Entry):
    """Files and batches: `[batches]`."""

    concurrency: int = Field(default=4, ge=0)
    """Maximum number of items that a server processes at once; with 0, only batch workers process them."""
    file_bytes: int = Field(default=16 * 2**20, ge=1024)
    """Maximum size of an uploaded file."""
    lines: int = Field(default=10_000, ge=1)
    """Maximum number of lines of a file."""
    reply_bytes: int = Field(default=2**20, ge=1024)
    """Maximum size of a result; the item fails if it is larger."""
    key_bytes: int = Field(default=256 * 2**20, ge=1024)
    """Maximum size of all files of a key, and of the requests and results of its unfinished batches; with more, it
    can't upload, batches are rejected, and requests of batches fail."""
    key_files: int = Field(default=1_000, ge=1)
    """Maximum number of files of a key, those with results included; with more, it can't upload."""
    key_batches: int = Field(default=2_000, ge=1)
    """Maximum number of batches of a key, those that have ended included, until `retain_days` deletes them."""
    unfinished: int = Field(default=20, ge=1)
    """Maximum number of batches of a key that have not ended."""


class ConversationEntry(_Entry):
    """Conversations of the Responses API: `[conversations]`."""

    key_conversations: int = Field(default=10_000, ge=1)
    """Maximum number of conversations of a key."""
    key_bytes: int = Field(default=256 * 2**20, ge=1024)
    """Maximum size of all conversations of a key; with more, it can't create any, nor add to them."""


class FeedbackEntry(_Entry):
    """Ratings of runs: `[feedback]`."""

    run_changes: int = Field(default=200, ge=1)
    """Maximum number of changes of a run's feedback by API keys; each has an audit record, which is never deleted."""


class PeopleEntry(_Entry):
    """People by their emails and groups, as the provider states them."""

    emails: frozenset[str] = frozenset()
    """Verified email addresses."""
    groups: frozenset[str] = frozenset()

    def contains(self, email: str | None, groups: Collection[str]) -> bool:
        """Returns whether somebody is listed by their email, ignoring case, or a group."""
        is_listed = email is not None and email.lower() in {listed.lower() for listed in self.emails}
        return is_listed or bool(self.groups & frozenset(groups))


class OidcEntry(_Entry):
    """Sign-in to the pages with OpenID Connect: `[oidc]`."""

    issuer: str = Field(
        pattern=r"^https://[^?#]+$|^http://(localhost|127\.0\.0\.1)(:\d+)?(/[^?#]*)?$",
        examples=["an https address without '?' and '#', such as issuer = \"https://login.example.com\""],
    )
    """The provider's address, exactly as its metadata has it."""
    client_id: str = Field(examples=["the id under which the provider knows this server"])
    client_secret_env: str = "OIDC_CLIENT_SECRET"  # noqa: S105  the name of a variable
    """The environment variable with the client secret."""
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#]+$",
        examples=['scheme://host without a path, such as public_url = "https://conductor.example.com"'],
    )
    """Where browsers find this server, such as `https://conductor.example.com`; by default, what the request names."""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    groups_claim: str = "groups"
    admins: PeopleEntry = PeopleEntry()
    """People who see everything."""
    readers: dict[EntryName, PeopleEntry] = Field(default_factory=dict)
    """People who see only the runs of one API key, by its name."""

    def role_of(self, email: str | None, groups: Collection[str]) -> tuple[bool, str | None]:
        """Returns whether somebody may see the pages, and the only key of the runs that they may see, if any."""
        if self.admins.contains(email, groups):
            return True, None
        key = next((name for name, people in self.readers.items() if people.contains(email, groups)), None)
        return key is not None, key


class WebEntry(_Entry):
    """Websites with pages that may call the API: `[web]`."""

    origins: tuple[Origin, ...] = ()
    """Their origins, such as `https://app.example.com`."""


class LogEntry(_Entry):
    """The log on stderr: `[log]`."""

    format: Literal["text", "json"] = "text"
    access: bool = True
    """Logs each request."""


class Settings(_Entry):
    """The whole file; all tables are optional."""

    host: str = "127.0.0.1"
    port: int = Field(default=8100, ge=0, le=65535)
    pool: Path | None = None
    """A pool file. Without it, the pool is `[workers]`, or else the one that `rl-conductor pool` discovers."""
    planner: PlannerEntry | None = None
    workers: dict[str, WorkerEntry] = Field(default_factory=dict)
    guardrails: tuple[GuardrailEntry, ...] = ()
    """Guardrails of all models, after those of the pool file."""
    models: dict[EntryName, ServedModelEntry] = Field(default_factory=dict)
    experiments: dict[ExperimentName, ExperimentEntry] = Field(default_factory=dict)
    keys: dict[EntryName, KeyEntry] = Field(default_factory=dict)
    admins: dict[EntryName, AdminEntry] = Field(default_factory=dict)
    """Administrators by their names in the log; without any, `/admin` is disabled."""
    oidc: OidcEntry | None = None
    store: StoreEntry = StoreEntry()
    intake: IntakeEntry = IntakeEntry()
    batches: BatchEntry = BatchEntry()
    conversations: ConversationEntry = ConversationEntry()
    feedback: FeedbackEntry = FeedbackEntry()
    web: WebEntry = WebEntry()
    log: LogEntry = LogEntry()

    @property
    def inline_pool(self) -> PoolFile | None:
        """The pool in the settings file itself."""
        return PoolFile(workers=self.workers, planner=self.planner) if self.workers else None


def read_settings(path: Path) -> Settings:
    """Reads and checks a settings file.

    Raises:
        ConfigError: the file doesn't exist, is not TOML, or has an invalid key, which the message names.
    """
    return _check(read_toml(path, Settings, "settings file"), path)


def _check(settings: Settings, path: Path) -> Settings:
    """Checks that tables agree, and resolves paths relative to the settings file.

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
    models = {name: _resolve_paths(path, entry) for name, entry in settings.models.items()}
    pool = None if settings.pool is None else path.parent / settings.pool
    return settings.model_copy(update={"pool": pool, "models": models})


def _resolve_paths(path: Path, entry: ServedModelEntry) -> ServedModelEntry:
    return entry if entry.router is None else entry.model_copy(update={"router": path.parent / entry.router})
