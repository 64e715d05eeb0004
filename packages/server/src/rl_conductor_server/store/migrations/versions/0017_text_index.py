"""Adds an index of the trigrams in questions and answers to SQLite, so that a text is found without reading all runs.

It has only runs that have ended: the others are few, and their rows change often. Triggers note which runs are to be
indexed, also in processes of older releases, and the server indexes many at a time, which takes less time.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

TEXTS = """
CREATE VIEW run_texts AS
SELECT id AS run, created, question || char(10) || coalesce(answer, '') AS text FROM runs
WHERE status <> 'running' AND (question <> '' OR answer <> '')
"""
TRIGRAMS = "CREATE VIRTUAL TABLE run_trigrams USING fts5(text, content='', columnsize=0, detail=none, tokenize=trigram)"
TRIGGERS = (
    """
    CREATE TRIGGER run_inserted AFTER INSERT ON runs WHEN new.status <> 'running' BEGIN
        INSERT INTO unindexed_runs SELECT run FROM run_texts WHERE run = new.id;
    END
    """,
    """
    CREATE TRIGGER run_changes BEFORE UPDATE OF status, question, answer ON runs WHEN old.status <> 'running' BEGIN
        DELETE FROM indexed_runs WHERE run = old.id;
        DELETE FROM unindexed_runs WHERE run = old.id;
    END
    """,
    """
    CREATE TRIGGER run_changed AFTER UPDATE OF status, question, answer ON runs WHEN new.status <> 'running' BEGIN
        INSERT INTO unindexed_runs SELECT run FROM run_texts WHERE run = new.id;
    END
    """,
    """
    CREATE TRIGGER run_deleted BEFORE DELETE ON runs BEGIN
        DELETE FROM indexed_runs WHERE run = old.id;
        DELETE FROM unindexed_runs WHERE run = old.id;
    END
    """,
    """
    CREATE TRIGGER run_indexed AFTER INSERT ON indexed_runs BEGIN
        INSERT INTO run_trigrams (rowid, text) SELECT new.number, text FROM run_texts WHERE run = new.run;
        DELETE FROM unindexed_runs WHERE run = new.run;
    END
    """,
    """
    CREATE TRIGGER run_not_indexed BEFORE DELETE ON indexed_runs BEGIN
        INSERT INTO run_trigrams (run_trigrams, rowid, text)
        SELECT 'delete', old.number, text FROM run_texts WHERE run = old.run;
    END
    """,
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _create_index()


def _create_index() -> None:
    op.create_table(  # because VACUUM may change the row ids of `runs`
        "indexed_runs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("run", sa.String(32), nullable=False, unique=True),
    )
    op.create_table("unindexed_runs", sa.Column("run", sa.String(32), primary_key=True))
    for statement in (TEXTS, TRIGRAMS, *TRIGGERS):
        op.execute(statement)
    op.execute("INSERT INTO indexed_runs (run) SELECT run FROM run_texts ORDER BY created")


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for trigger in ("run_inserted", "run_changes", "run_changed", "run_deleted"):
            op.execute(f"DROP TRIGGER {trigger}")
        for table in ("unindexed_runs", "indexed_runs", "run_trigrams"):
            op.drop_table(table)
        op.execute("DROP VIEW run_texts")
