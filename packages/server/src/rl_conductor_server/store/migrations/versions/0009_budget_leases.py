"""Adds the processes' shares of budgets and the reservations of calls in flight, so that budgets are hard caps."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
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
    op.add_column("runs", sa.Column("reserved_usd", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("reserved_tokens", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("runs_by_charge", "runs", ["key", "created", "charged_usd", "charged_tokens"])


def downgrade() -> None:
    op.drop_index("runs_by_charge", "runs")
    op.drop_column("runs", "reserved_tokens")
    op.drop_column("runs", "reserved_usd")
    op.drop_table("budget_leases")
