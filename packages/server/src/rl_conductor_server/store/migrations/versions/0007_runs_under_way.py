"""Finds runs whose server is gone without reading all runs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

UNDER_WAY = sa.text("status = 'running'")


def upgrade() -> None:
    """Add an index of the few runs that are under way."""
    op.create_index("runs_under_way", "runs", ["heartbeat"], sqlite_where=UNDER_WAY, postgresql_where=UNDER_WAY)


def downgrade() -> None:
    """Drop it."""
    op.drop_index("runs_under_way", "runs")
