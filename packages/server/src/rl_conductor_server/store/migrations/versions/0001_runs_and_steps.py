"""Creates the tables for runs, with excerpts for lists and search, and their steps."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("idempotency", sa.String(255)),
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
        # Before the trace, because a search reads these, and SQLite reads all that stands before a column in its row.
        sa.Column("question", sa.Text, nullable=False, server_default=""),
        sa.Column("answer", sa.Text),
        sa.Column("trace", sa.Text),
    )
    op.create_index("runs_by_idempotency", "runs", ["key", "idempotency", "choice"], unique=True)
    op.create_index("runs_by_key", "runs", ["key", "created"])
    usage = ["cost", "input_tokens", "output_tokens", "calls", "unpriced_calls"]
    op.create_index("runs_by_time", "runs", ["created", "key", "model", *usage])
    op.create_table(
        "steps",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("steps")
    op.drop_table("runs")
