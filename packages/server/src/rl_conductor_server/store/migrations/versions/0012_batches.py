"""Creates the tables of uploaded files and of batches of requests."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("content", sa.Text),
        sa.Column("batch", sa.String(40)),
        sa.Column("part", sa.String(16)),
    )
    op.create_index("files_by_key", "files", ["key", "created"])
    op.create_table(
        "batches",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file", sa.String(40), nullable=False),
        sa.Column("output_file", sa.String(40)),
        sa.Column("error_file", sa.String(40)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("cancelling", sa.Float),
        sa.Column("ended", sa.Float),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("errors", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
    )
    op.create_index("batches_by_key", "batches", ["key", "created"])
    op.create_index("batches_by_status", "batches", ["status", "expires"])
    op.create_table(
        "batch_items",
        sa.Column("batch", sa.String(40), sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("custom_id", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("heartbeat", sa.Float),
        sa.Column("result", sa.Text),
        sa.Column("result_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("batch_items_by_status", "batch_items", ["status", "line"])


def downgrade() -> None:
    op.drop_table("batch_items")
    op.drop_table("batches")
    op.drop_table("files")
