"""The index of the trigrams in questions and answers of runs, which migration 0001 creates.

The index finds a text without reading all runs. It has only runs that have ended: the others are few, and their rows
change often. In SQLite, triggers note which runs are to be indexed, and the server indexes many at a time, which takes
less time. Postgres does so itself. There the index has an expression of its own, else Postgres would also use it to
search for frequent texts, where it is slow.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from alembic import op

from rl_conductor_server.store.database import reason_of

log = logging.getLogger("rl_conductor_server.store")

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

POSTGRES_INDEX = """
CREATE INDEX runs_by_text ON runs USING gin ((question || chr(10) || coalesce(answer, '')) gin_trgm_ops)
WHERE status <> 'running'
"""


def create_text_index() -> None:
    """Creates the index in the database that is migrated."""
    if op.get_bind().dialect.name == "sqlite":
        _create_sqlite_index()
    else:
        _create_postgres_index()


def _create_sqlite_index() -> None:
    op.create_table(  # because VACUUM may change the row ids of `runs`
        "indexed_runs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("run", sa.String(32), nullable=False, unique=True),
    )
    op.create_table("unindexed_runs", sa.Column("run", sa.String(32), primary_key=True))
    for statement in (TEXTS, TRIGRAMS, *TRIGGERS):
        op.execute(statement)


def _create_postgres_index() -> None:
    """Creates the index of texts, unless this Postgres lacks the module for it, or the user may not install that."""
    try:
        with op.get_bind().begin_nested():
            op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            op.execute(POSTGRES_INDEX)
    except sa.exc.DBAPIError as error:
        log.info("the store has no index of texts, as pg_trgm can't be installed: %s", reason_of(error))
