"""Adds an index of running runs, so that expired leases are found without reading all runs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

IS_RUNNING = sa.text("status = 'running'")


def upgrade() -> None:
    op.create_index("runs_under_way", "runs", ["heartbeat"], sqlite_where=IS_RUNNING, postgresql_where=IS_RUNNING)


def downgrade() -> None:
    op.drop_index("runs_under_way", "runs")
