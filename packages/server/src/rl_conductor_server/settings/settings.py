"""`Settings`: the whole file, and `read_settings`, which reads and checks it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rl_conductor._internal.toml import read_toml
from rl_conductor.errors import ConfigError
from rl_conductor.pool.model_entry import Entry
from rl_conductor.pool.pool_file import GuardrailEntry, PlannerEntry, PoolFile, WorkerEntry
from rl_conductor_server.settings.batches import BatchEntry
from rl_conductor_server.settings.experiments import ExperimentEntry
from rl_conductor_server.settings.intake import IntakeEntry
from rl_conductor_server.settings.keys import AdminEntry, KeyEntry
from rl_conductor_server.settings.log import LogEntry
from rl_conductor_server.settings.models import ServedModelEntry
from rl_conductor_server.settings.names import EntryName, ExperimentName
from rl_conductor_server.settings.sign_in import OidcEntry
from rl_conductor_server.settings.store import ConversationEntry, FeedbackEntry, StoreEntry
from rl_conductor_server.settings.websites import WebEntry


class Settings(Entry):
    """The whole file; all tables are optional."""

    host: str = "127.0.0.1"
    """The address to listen on; one that other machines can reach requires an API key."""
    port: int = Field(default=8100, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    pool: Path | None = None
    """A pool file. Without it, the pool is `[workers]`, or else the one that `rl-conductor pool` discovers."""
    planner: PlannerEntry | None = None
    """The planner of `[workers]`; `None` means the first worker that can plan."""
    workers: dict[str, WorkerEntry] = Field(default_factory=dict)
    """The workers by name, in place of a pool file."""
    guardrails: tuple[GuardrailEntry, ...] = ()
    """Guardrails of all models, after those of the pool file."""
    models: dict[EntryName, ServedModelEntry] = Field(default_factory=dict)
    """Models by name, beside the built-in `conductor-mini` and `conductor-ultra`."""
    experiments: dict[ExperimentName, ExperimentEntry] = Field(default_factory=dict)
    """Experiments by the name of the model that clients request."""
    keys: dict[EntryName, KeyEntry] = Field(default_factory=dict)
    """API keys by name, beside those that `rl-conductor keys create` stores."""
    admins: dict[EntryName, AdminEntry] = Field(default_factory=dict)
    """Administrators by their names in the log, beside those that `rl-conductor keys create --admin` stores; without
    any, `/admin` is disabled."""
    oidc: OidcEntry | None = None
    """Sign-in to the pages at an OpenID Connect provider; `None` leaves the administrators' keys."""
    store: StoreEntry = StoreEntry()
    """The database of runs."""
    intake: IntakeEntry = IntakeEntry()
    """Limits of incoming requests."""
    batches: BatchEntry = BatchEntry()
    """Limits of files and batches."""
    conversations: ConversationEntry = ConversationEntry()
    """Limits of conversations."""
    feedback: FeedbackEntry = FeedbackEntry()
    """Limits of ratings."""
    web: WebEntry = WebEntry()
    """Websites whose pages may call the API from a browser."""
    log: LogEntry = LogEntry()
    """The log on stderr."""

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
    names: dict[str, str] = {}
    for other, key in settings.keys.items():
        if (name := names.setdefault(key.sha256, other)) != other:
            raise ConfigError(f"{str(path)!r}: keys.{name} and keys.{other} have one sha256; make a key for each")
    models = {name: _resolve_paths(path, entry) for name, entry in settings.models.items()}
    pool = None if settings.pool is None else path.parent / settings.pool
    return settings.model_copy(update={"pool": pool, "models": models})


def _resolve_paths(path: Path, entry: ServedModelEntry) -> ServedModelEntry:
    return entry if entry.router is None else entry.model_copy(update={"router": path.parent / entry.router})
