"""Creates the table of requests and answers of the Responses API."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("run", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("previous", sa.String(32)),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("output", sa.Text),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
    )
    op.create_index("responses_by_time", "responses", ["created"])


def downgrade() -> None:
    op.drop_table("responses")
