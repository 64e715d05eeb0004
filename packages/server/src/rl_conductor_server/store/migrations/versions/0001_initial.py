"""Creates all tables, and an index of the texts of runs."""

import sqlalchemy as sa
from alembic import op

from rl_conductor_server.store.migrations.text_index import create_text_index

revision = "0001"
down_revision = None

USAGE = ("cost", "input_tokens", "output_tokens", "calls", "unpriced_calls")
IS_RUNNING = sa.text("status = 'running'")
IS_CACHEABLE = sa.text("cache_digest IS NOT NULL")
IS_IN_SESSION = sa.text("session IS NOT NULL")
IS_INTERNAL = sa.text("api IN ('shadow', 'judge', 'replay')")


def upgrade() -> None:
    _create_runs()
    _create_details_of_runs()
    _create_experiments()
    _create_usage()
    _create_access()
    _create_responses()
    _create_files()
    _create_batches()
    create_text_index()


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("choice", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("api", sa.String(16), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("heartbeat", sa.Float, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("unpriced_calls", sa.Integer, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("error_code", sa.String(64)),
        sa.Column("question", sa.Text, nullable=False, server_default=""),
        sa.Column("answer", sa.Text),
        sa.Column("arm", sa.String(16)),
        sa.Column("session", sa.String(128)),
        sa.Column("charged_usd", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("charged_tokens", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reserved_usd", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reserved_tokens", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("cache_digest", sa.String(64)),
        sa.Column("cached_from", sa.String(32)),
        sa.Column("saved_usd", sa.BigInteger, nullable=False, server_default="0"),
        # Last, because a search reads others, and SQLite reads all that stands before a column in its row.
        sa.Column("trace", sa.Text),
        *_run_indexes(),
    )


def _run_indexes() -> tuple[sa.Index, ...]:
    return (
        sa.Index("runs_by_idempotency_key", "key", "idempotency_key", "choice", unique=True),
        sa.Index("runs_by_key", "key", "created"),
        sa.Index("runs_by_charge", "key", "created", "charged_usd", "charged_tokens"),
        sa.Index("runs_by_time", "created", "key", "model", *USAGE),
        sa.Index("runs_by_arm", "model", "arm", "created"),
        sa.Index(
            "runs_by_cache_digest",
            "key",
            "cache_digest",
            "created",
            sqlite_where=IS_CACHEABLE,
            postgresql_where=IS_CACHEABLE,
        ),
        sa.Index("runs_by_session", "session", "created"),
        sa.Index(
            "runs_in_sessions",
            "created",
            "key",
            "session",
            "api",
            sqlite_where=IS_IN_SESSION,
            postgresql_where=IS_IN_SESSION,
        ),
        sa.Index("runs_under_way", "heartbeat", sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING),
        sa.Index("runs_of_runs", "api", "labels", sqlite_where=IS_INTERNAL, postgresql_where=IS_INTERNAL),
    )


def _create_details_of_runs() -> None:
    op.create_table(
        "steps",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "worker_usage",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("worker", sa.String(255), primary_key=True),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("unpriced_calls", sa.Integer, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Index("worker_usage_by_worker", "worker", "created"),
        sa.Index("worker_usage_by_time", "created", "worker", *USAGE),
    )
    op.create_table(
        "users",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("created", sa.Float, nullable=False),
        sa.Index("users_by_name", "name", "created"),
    )
    op.create_table(
        "feedback",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("author", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
    )
    op.create_table(
        "audit_records",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("line", sa.Text, nullable=False),
        sa.Index("audit_records_by_run", "run"),
    )


def _create_experiments() -> None:
    op.create_table(
        "pairs",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("shadow", sa.String(32), nullable=False),
        sa.Column("experiment", sa.String(128), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("arm", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(8), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("baseline_cost", sa.BigInteger),
        sa.Column("baseline_seconds", sa.Float, nullable=False),
        sa.Column("conductor_cost", sa.BigInteger),
        sa.Column("conductor_seconds", sa.Float, nullable=False),
        sa.Index("pairs_by_experiment", "experiment", "created"),
    )
    op.create_table(
        "canaries",
        sa.Column("experiment", sa.String(128), primary_key=True),
        sa.Column("configured", sa.Float, nullable=False),
        sa.Column("percent", sa.Float, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )


def _create_usage() -> None:
    op.create_table(
        "deleted_usage",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(32), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger, nullable=False),
        sa.Column("charged_usd", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("charged_tokens", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_table(
        "summed_days",
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("mark", sa.String(32)),
    )
    op.create_table(
        "daily_usage",
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("group_by", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "stored_sizes",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "budget_leases",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String(32), primary_key=True),
        sa.Column("granted_usd", sa.BigInteger, nullable=False),
        sa.Column("granted_tokens", sa.BigInteger, nullable=False),
        sa.Column("charged_usd", sa.BigInteger, nullable=False),
        sa.Column("charged_tokens", sa.BigInteger, nullable=False),
        sa.Column("heartbeat", sa.Float, nullable=False),
    )


def _create_access() -> None:
    op.create_table(
        "api_keys",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("admin", sa.Boolean, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float),
        sa.Column("revoked", sa.Float),
        sa.Index("api_keys_by_name", "name"),
    )
    op.create_table(
        "sign_ins",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("identity", sa.Text),
    )


def _create_responses() -> None:
    op.create_table(
        "responses",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("previous", sa.String(32)),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        # The long ones are last, because SQLite reads all that stands before a column in its row.
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("input", sa.Text, nullable=False),
        sa.Column("output", sa.Text),
        sa.Index("responses_by_time", "created"),
    )
    op.create_table(
        "stream_pieces",
        sa.Column("run", sa.String(32), sa.ForeignKey("responses.run", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("turn", sa.String(64)),
        sa.Column("turn_heartbeat", sa.Float),
        sa.Index("conversations_by_time", "updated"),
        sa.Index("conversations_by_key", "key", "bytes"),
    )
    op.create_table(
        "conversation_items",
        sa.Column("conversation", sa.String(64), primary_key=True),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Index("conversation_items_by_position", "conversation", "position"),
        sa.Index("conversation_items_by_time", "created"),
        sa.Index("conversation_items_by_id", "id"),
    )


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("content", sa.Text),
        sa.Column("batch", sa.String(40)),
        sa.Column("part", sa.String(16)),
        sa.Index("files_by_key", "key", "created"),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file", sa.String(40), nullable=False),
        sa.Column("output_file", sa.String(40)),
        sa.Column("error_file", sa.String(40)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("cancelling", sa.Float),
        sa.Column("ended", sa.Float),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("errors", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("served", sa.Float),
        sa.Index("batches_by_key", "key", "created"),
        sa.Index("batches_by_served", "key", "served"),
        sa.Index("batches_by_status", "status", "expires"),
    )
    op.create_table(
        "batch_items",
        sa.Column("batch", sa.String(40), sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("custom_id", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("heartbeat", sa.Float),
        sa.Column("result", sa.Text),
        sa.Column("result_bytes", sa.BigInteger, nullable=False),
        sa.Column("not_before", sa.Float),
        sa.Index("batch_items_by_status", "status", "batch", "line"),
    )
