"""Adds the arm of each run, pairs of answers with their verdicts, and canaries."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("runs", sa.Column("side", sa.String(16)))
    op.create_index("runs_by_side", "runs", ["model", "side", "created"])
    op.create_table(
        "pairs",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("shadow", sa.String(32), nullable=False),
        sa.Column("route", sa.String(128), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("answered", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(8), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("incumbent_cost", sa.BigInteger),
        sa.Column("incumbent_seconds", sa.Float, nullable=False),
        sa.Column("conductor_cost", sa.BigInteger),
        sa.Column("conductor_seconds", sa.Float, nullable=False),
    )
    op.create_index("pairs_by_route", "pairs", ["route", "created"])
    op.create_table(
        "canaries",
        sa.Column("route", sa.String(128), primary_key=True),
        sa.Column("configured", sa.Float, nullable=False),
        sa.Column("percent", sa.Float, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("canaries")
    op.drop_table("pairs")
    op.drop_index("runs_by_side", "runs")
    op.drop_column("runs", "side")
