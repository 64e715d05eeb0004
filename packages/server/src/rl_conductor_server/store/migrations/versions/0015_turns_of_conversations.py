"""Adds the turn in progress to conversations of the Responses API."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("conversations", sa.Column("turn", sa.String(64)))
    op.add_column("conversations", sa.Column("turn_heartbeat", sa.Float))


def downgrade() -> None:
    op.drop_column("conversations", "turn_heartbeat")
    op.drop_column("conversations", "turn")
