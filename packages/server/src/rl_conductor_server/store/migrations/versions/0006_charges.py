"""What runs were charged to budgets: more than they are known to have used, where calls broke off."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

TABLES = ("runs", "forgotten")


def upgrade() -> None:
    """Add it; runs from before count as what they used."""
    for table in TABLES:
        op.add_column(table, sa.Column("charged_usd", sa.BigInteger, nullable=False, server_default="0"))
        op.add_column(table, sa.Column("charged_tokens", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE runs SET charged_usd = cost, charged_tokens = input_tokens + output_tokens")
    op.execute("UPDATE forgotten SET charged_usd = cost, charged_tokens = input_tokens + output_tokens")


def downgrade() -> None:
    """Drop it."""
    for table in TABLES:
        op.drop_column(table, "charged_tokens")
        op.drop_column(table, "charged_usd")
