"""Adds the digest by which the response cache finds runs, and the source of a cached answer."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

IS_CACHEABLE = sa.text("cache_digest IS NOT NULL")


def upgrade() -> None:
    op.add_column("runs", sa.Column("cache_digest", sa.String(64)))
    op.add_column("runs", sa.Column("cached_from", sa.String(32)))
    op.add_column("runs", sa.Column("saved_usd", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index(
        "runs_by_cache_digest",
        "runs",
        ["key", "cache_digest", "created"],
        sqlite_where=IS_CACHEABLE,
        postgresql_where=IS_CACHEABLE,
    )


def downgrade() -> None:
    op.drop_index("runs_by_cache_digest", "runs")
    for column in ("saved_usd", "cached_from", "cache_digest"):
        op.drop_column("runs", column)
