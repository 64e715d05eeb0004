"""Adds sessions and users of runs, identities of browser sessions, conversations, streams, and stored sizes."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("runs", sa.Column("session", sa.String(128)))
    op.create_index("runs_by_session", "runs", ["session", "created"])
    in_session = sa.text("session IS NOT NULL")
    op.create_index(
        "runs_in_sessions",
        "runs",
        ["created", "key", "session", "api"],
        sqlite_where=in_session,
        postgresql_where=in_session,
    )
    op.create_table(
        "users",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_index("users_by_name", "users", ["name", "created"])
    op.add_column("sessions", sa.Column("identity", sa.Text))
    op.add_column("batches", sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default="0"))
    _create_conversations()
    op.create_table(
        "response_events",
        sa.Column("run", sa.String(32), sa.ForeignKey("responses.run", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "stored_sizes",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )


def _create_conversations() -> None:
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
    )
    op.create_index("conversations_by_time", "conversations", ["updated"])
    op.create_index("conversations_by_key", "conversations", ["key", "bytes"])
    op.create_table(
        "conversation_items",
        sa.Column("conversation", sa.String(64), primary_key=True),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("conversation_items_by_position", "conversation_items", ["conversation", "position"])
    op.create_index("conversation_items_by_time", "conversation_items", ["created"])
    op.create_index("conversation_items_by_id", "conversation_items", ["id"])


def downgrade() -> None:
    op.drop_table("stored_sizes")
    op.drop_table("response_events")
    op.drop_table("conversation_items")
    op.drop_table("conversations")
    op.drop_column("batches", "stored_bytes")
    op.drop_column("sessions", "identity")
    op.drop_table("users")
    op.drop_index("runs_in_sessions", "runs")
    op.drop_index("runs_by_session", "runs")
    op.drop_column("runs", "session")
