"""The tables, for SQLite and PostgreSQL. The migrations create them; a test checks that both agree."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, column, table
from sqlalchemy import text as sql
from sqlalchemy.types import TypeEngine

from rl_conductor_server.store.column_types import Count, Dollars, String, Text

USAGE_COLUMNS = ("cost", "input_tokens", "output_tokens", "calls", "unpriced_calls")
CHARGE_COLUMNS = ("charged_usd", "charged_tokens")
"""The amounts that budgets count: more than the usage if an interrupted call may have been billed."""
RESERVED_COLUMNS = ("reserved_usd", "reserved_tokens")
"""Upper bound of the calls in flight, which are charged in full if the process dies."""
PLAN_POSITION = -1
"""The `position` of a round's plan in `steps`."""
DAY = 86_400
"""Seconds."""


def _usage_columns(*, calls: type[TypeEngine[int]]) -> list[Column[Any]]:
    """Creates the columns `USAGE_COLUMNS`; `calls` is the type of both numbers of calls."""
    kinds: tuple[type[TypeEngine[Any]], ...] = (Dollars, Count, Count, calls, calls)
    return [Column(name, kind, nullable=False) for name, kind in zip(USAGE_COLUMNS, kinds, strict=True)]


metadata = MetaData()
IS_RUNNING = sql("status = 'running'")
HAS_ENDED = sql("status <> 'running'")
IS_CACHEABLE = sql("cache_digest IS NOT NULL")
IS_IN_SESSION = sql("session IS NOT NULL")
IS_INTERNAL = sql("api IN ('shadow', 'judge', 'replay')")

runs = Table(
    "runs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("idempotency_key", String(255)),
    Column("choice", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("api", String(16), nullable=False),
    Column("model", String(128), nullable=False),
    Column("status", String(16), nullable=False),
    Column("owner", String(32), nullable=False),
    Column("heartbeat", Float, nullable=False),
    Column("created", Float, nullable=False),
    Column("seconds", Float),
    *_usage_columns(calls=Integer),
    Column("labels", Text, nullable=False),
    Column("error", Text),
    Column("error_code", String(64)),
    Column("question", Text, nullable=False, server_default=""),
    Column("answer", Text),
    Column("arm", String(16)),
    Column("session", String(128)),
    Column("charged_usd", Dollars, nullable=False, server_default="0"),
    Column("charged_tokens", Count, nullable=False, server_default="0"),
    Column("reserved_usd", Dollars, nullable=False, server_default="0"),
    Column("reserved_tokens", Count, nullable=False, server_default="0"),
    Column("cache_digest", String(64)),
    Column("cached_from", String(32)),
    Column("saved_usd", Dollars, nullable=False, server_default="0"),
    Column("trace", Text),
    Index("runs_by_idempotency_key", "key", "idempotency_key", "choice", unique=True),
    Index("runs_by_key", "key", "created"),
    Index("runs_by_charge", "key", "created", "charged_usd", "charged_tokens"),
    Index("runs_by_time", "created", "key", "model", *USAGE_COLUMNS),
    Index("runs_by_arm", "model", "arm", "created"),
    Index(
        "runs_by_cache_digest",
        "key",
        "cache_digest",
        "created",
        sqlite_where=IS_CACHEABLE,
        postgresql_where=IS_CACHEABLE,
    ),
    Index("runs_by_session", "session", "created"),
    Index(
        "runs_in_sessions",
        "created",
        "key",
        "session",
        "api",
        sqlite_where=IS_IN_SESSION,
        postgresql_where=IS_IN_SESSION,
    ),
    Index("runs_under_way", "heartbeat", sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING),
    Index("runs_of_runs", "api", "labels", sqlite_where=IS_INTERNAL, postgresql_where=IS_INTERNAL),
)
"""One row per run; `trace` is set when the run ends. `question` and `answer` are excerpts for lists and search."""

run_trigrams = table("run_trigrams", column("rowid"), column("run_trigrams"))
"""In SQLite, FTS5's index of the trigrams in texts of runs that have ended, see `migrations.text_index`."""

indexed_runs = table("indexed_runs", column("number"), column("run"))
"""The runs that it has, by their row ids there; a trigger keeps both equal."""

unindexed_runs = table("unindexed_runs", column("run"))
"""The runs that are to be added to it, see `Statements.index_runs`."""

pairs = Table(
    "pairs",
    metadata,
    Column("run", String(32), primary_key=True),
    Column("shadow", String(32), nullable=False),
    Column("experiment", String(128), nullable=False),
    Column("created", Float, nullable=False),
    Column("arm", String(16), nullable=False),
    Column("verdict", String(8), nullable=False),
    Column("reason", Text, nullable=False),
    Column("baseline_cost", Dollars),
    Column("baseline_seconds", Float, nullable=False),
    Column("conductor_cost", Dollars),
    Column("conductor_seconds", Float, nullable=False),
    Index("pairs_by_experiment", "experiment", "created"),
)
"""Compared answers to one request of an experiment: the user got that of `run`, not that of `shadow`."""

canaries = Table(
    "canaries",
    metadata,
    Column("experiment", String(128), primary_key=True),
    Column("configured", Float, nullable=False),
    Column("percent", Float, nullable=False),
    Column("since", Float, nullable=False),
    Column("reason", Text, nullable=False),
)
"""The percentage of requests that each experiment's conductor answers, and the last one that the settings gave."""

steps = Table(
    "steps",
    metadata,
    Column("run", String(32), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)
"""Plans, at `PLAN_POSITION`, and finished steps of a run; deleted when the run ends and its trace is stored."""

worker_usage = Table(
    "worker_usage",
    metadata,
    Column("run", String(32), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("worker", String(255), primary_key=True),
    *_usage_columns(calls=Integer),
    Column("created", Float, nullable=False),
    Index("worker_usage_by_worker", "worker", "created"),
    Index("worker_usage_by_time", "created", "worker", *USAGE_COLUMNS),
)
"""Usage of each worker in a run that has ended, which was `created` at that time; the worker of planning calls is the
empty string."""

users = Table(
    "users",
    metadata,
    Column("run", String(32), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("created", Float, nullable=False),
    Index("users_by_name", "name", "created"),
)
"""The end users whom clients named for a run, in lower case; `created` is that of the run."""

deleted_usage = Table(
    "deleted_usage",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("owner", String(32), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    *_usage_columns(calls=Count),
    Column("charged_usd", Dollars, nullable=False, server_default="0"),
    Column("charged_tokens", Count, nullable=False, server_default="0"),
)
"""Usage of deleted runs by the day on which they began, numbered from 1970 in UTC."""

summed_days = Table(
    "summed_days",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("mark", String(32)),
)
"""Days, numbered like those of `deleted_usage`, whose usage is in `daily_usage`; a day with a `mark` is being added up,
by the process that chose the mark."""

daily_usage = Table(
    "daily_usage",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("group_by", String(16), primary_key=True),
    Column("name", String(255), primary_key=True),
    *_usage_columns(calls=Count),
)
"""Usage of the stored runs of a day by worker, model or key; valid while the day is in `summed_days` without a mark."""

stored_sizes = Table(
    "stored_sizes",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("bytes", Count, nullable=False),
)
"""Bytes of traces and responses that a key stores, by the day on which their runs began, numbered as in
`deleted_usage`."""

feedback = Table(
    "feedback",
    metadata,
    Column("run", String(32), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("author", String(64), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("score", Float, nullable=False),
    Column("comment", Text, nullable=False),
    Column("updated", Float, nullable=False),
)
"""Ratings of runs: one row per author and criterion (`key`)."""

budget_leases = Table(
    "budget_leases",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", String(32), primary_key=True),
    Column("granted_usd", Dollars, nullable=False),
    Column("granted_tokens", Count, nullable=False),
    Column("charged_usd", Dollars, nullable=False),
    Column("charged_tokens", Count, nullable=False),
    Column("heartbeat", Float, nullable=False),
)
"""The share of a key's budget for the period from `start` that each process may spend, and what it has charged."""

responses = Table(
    "responses",
    metadata,
    Column("run", String(32), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("previous", String(32)),
    Column("created", Float, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("output", Text),
    Index("responses_by_time", "created"),
)
"""Requests and answers of the Responses API that may be retrieved and continued.

`parameters` is the request without its `input`, which may be long and is not read by clients that wait for an answer.
"""

stream_pieces = Table(
    "stream_pieces",
    metadata,
    Column("run", String(32), ForeignKey("responses.run", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)
"""The pieces of streamed responses, several a row; `position` is the number of pieces before a row."""

conversations = Table(
    "conversations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("created", Float, nullable=False),
    Column("updated", Float, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("turn", String(64)),
    Column("turn_heartbeat", Float),
    Index("conversations_by_time", "updated"),
    Index("conversations_by_key", "key", "bytes"),
)
"""Conversations of the Responses API, by the API key that may use them; `updated` is the time of the last change.

`bytes` is the size of the metadata and all items. `turn` is the request that is being answered, if any; its processes
renew `turn_heartbeat`.
"""

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("conversation", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Column("body", Text, nullable=False),
    Index("conversation_items_by_position", "conversation", "position"),
    Index("conversation_items_by_time", "created"),
    Index("conversation_items_by_id", "id"),
)
"""Messages and tool calls of conversations, in the order of `position`."""

api_keys = Table(
    "api_keys",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("admin", Boolean, nullable=False),
    Column("entry", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("revoked", Float),
    Index("api_keys_by_name", "name"),
)
"""API keys and administrators that were created at run time. Its rows are never deleted."""

files = Table(
    "files",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("bytes", Count, nullable=False),
    Column("created", Float, nullable=False),
    Column("content", Text),
    Column("batch", String(40)),
    Column("part", String(16)),
    Index("files_by_key", "key", "created"),
)
"""Files of API keys: uploaded ones with their `content`, and the results of a `batch`, which are in `batch_items`."""

batches = Table(
    "batches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("input_file", String(40), nullable=False),
    Column("output_file", String(40)),
    Column("error_file", String(40)),
    Column("status", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("cancelling", Float),
    Column("ended", Float),
    Column("labels", Text, nullable=False),
    Column("errors", Text),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("stored_bytes", Count, nullable=False, server_default="0"),
    Column("served", Float),
    Index("batches_by_key", "key", "created"),
    Index("batches_by_served", "key", "served"),
    Index("batches_by_status", "status", "expires"),
)
"""Batches of requests. `errors` are those of an input file that was rejected.

`stored_bytes` is the size of the requests and results of a batch that has not ended; then it has files of results.
`served` is when an item was last claimed.
"""

batch_items = Table(
    "batch_items",
    metadata,
    Column("batch", String(40), ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("owner", String(32)),
    Column("heartbeat", Float),
    Column("result", Text),
    Column("result_bytes", Count, nullable=False),
    Column("not_before", Float),
    Index("batch_items_by_status", "status", "batch", "line"),
)
"""Requests of batches, but for those that were cancelled, which no file lists.

`body` is emptied when the request has a `result`, a line of the output or the error file. `not_before` is when a queued
request may be tried again that another one kept waiting.
"""

sign_ins = Table(
    "sign_ins",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("expires", Float, nullable=False),
    Column("identity", Text),
)
"""Browsers that signed in, by the SHA-256 of their cookie; `identity` is what an OpenID Connect provider said."""

audit_records = Table(
    "audit_records",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("run", String(32), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("line", Text, nullable=False),
    Index("audit_records_by_run", "run"),
)
"""The audit record. Its rows are never deleted, even when the runs are."""
