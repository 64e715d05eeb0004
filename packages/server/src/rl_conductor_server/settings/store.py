"""The database, and the limits of a key in it."""

from __future__ import annotations

from pydantic import Field

from rl_conductor.pool.model_entry import Entry


class StoreEntry(Entry):
    """The database of runs: `[store]`."""

    url: str = "sqlite:///rl-conductor.db"
    """The address of the database: `sqlite:///PATH`, relative to the working directory, or `postgres://...`, which
    several servers can share."""
    wait_seconds: float = Field(default=45.0, ge=0)
    """Seconds that the server waits at its start for a database that does not answer yet."""
    retain_days: int = Field(default=30, ge=1)
    """Days until runs, responses, batches and conversations are deleted; audit records and spending are kept."""
    key_bytes: int = Field(default=8 * 2**30, ge=1024)
    """Maximum bytes of the traces and responses of a key; with more, only requests that store nothing are answered."""
    search_index: bool = True
    """Whether to add the texts of runs to an index, in SQLite: searches take less time, storing a run takes more."""
    lease_seconds: float = Field(default=10.0, ge=1)
    """Seconds without a heartbeat after which a process counts as dead, and others may resume its runs; it sends five
    heartbeats in that time."""


class ConversationEntry(Entry):
    """Conversations of the Responses API: `[conversations]`."""

    key_conversations: int = Field(default=10_000, ge=1)
    """Maximum number of conversations of a key."""
    key_bytes: int = Field(default=256 * 2**20, ge=1024)
    """Maximum bytes of all conversations of a key; with more, it can't create any, nor add to them."""


class FeedbackEntry(Entry):
    """Ratings of runs: `[feedback]`."""

    run_changes: int = Field(default=200, ge=1)
    """Maximum number of changes of a run's feedback by API keys; each has an audit record, which is never deleted."""
