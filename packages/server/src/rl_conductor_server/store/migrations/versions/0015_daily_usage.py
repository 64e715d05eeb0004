"""Creates the tables for the usage of whole days, which spending reads instead of their runs."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("daily_usage")
    op.drop_table("summed_days")
