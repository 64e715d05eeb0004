"""Adds the charges to budgets: more than the known usage if a call was interrupted."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

TABLES = ("runs", "forgotten")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("charged_usd", sa.BigInteger, nullable=False, server_default="0"))
        op.add_column(table, sa.Column("charged_tokens", sa.BigInteger, nullable=False, server_default="0"))
    # Runs from before count as what they used.
    op.execute("UPDATE runs SET charged_usd = cost, charged_tokens = input_tokens + output_tokens")
    op.execute("UPDATE forgotten SET charged_usd = cost, charged_tokens = input_tokens + output_tokens")


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "charged_tokens")
        op.drop_column(table, "charged_usd")
