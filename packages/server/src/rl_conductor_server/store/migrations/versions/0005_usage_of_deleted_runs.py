"""Creates the table for the usage of deleted runs, which budgets go on counting."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "forgotten",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(32), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("forgotten")
