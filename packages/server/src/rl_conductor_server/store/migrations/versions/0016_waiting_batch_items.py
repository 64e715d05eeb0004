"""Adds the time before which a request of a batch is not tried again, as another request keeps it waiting."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("batch_items", sa.Column("not_before", sa.Float))


def downgrade() -> None:
    op.drop_column("batch_items", "not_before")
