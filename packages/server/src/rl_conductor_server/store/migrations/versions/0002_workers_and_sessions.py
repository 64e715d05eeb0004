"""Creates the tables for the usage per worker, and for browser sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("run", sa.String(32), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("worker", sa.String(255), primary_key=True),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("unpriced_calls", sa.Integer, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    usage = ["cost", "input_tokens", "output_tokens", "calls", "unpriced_calls"]
    op.create_index("shares_by_worker", "shares", ["worker", "created"])
    op.create_index("shares_by_time", "shares", ["created", "worker", *usage])
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("expires", sa.Float, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("sessions")
    op.drop_table("shares")
