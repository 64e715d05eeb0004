"""Finds runs, in SQLite by an index of their texts where that is faster.

The index has the trigrams of texts. It finds the few runs that have a rare text; reading all runs, the newest first,
soon finds enough that have a frequent one. Postgres has no such index: its planner takes a phrase of frequent words for
a rare one, and would then read all runs that have the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Result, func, select, union_all

from rl_conductor_server.store.column_types import sanitize
from rl_conductor_server.store.models import Search
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.queries import select_runs, select_runs_among
from rl_conductor_server.store.tables import IS_RUNNING, indexed_runs, run_trigrams, runs, unindexed_runs

MAX_CANDIDATES = 4_000
"""Maximum number of runs that are read because the index has them. A text of more runs is found as fast without it:
among a million, 50 of them are in the newest 12,500 on average."""
MAX_TRIGRAMS = 50
"""Maximum number of trigrams that are looked up."""


async def find_runs(
    reader: StoreReader, search: Search, columns: Sequence[ColumnElement[Any]], *, limit: int
) -> Result[Any]:
    """Returns columns of the runs that match, newest first."""
    query = select_runs(search, columns, limit=limit)
    if reader.dialect == "sqlite" and search.text and (trigrams := _trigrams_of(search.text)):
        candidates = _select_candidates(trigrams)
        count = select(func.count()).select_from(candidates.limit(MAX_CANDIDATES + 1).subquery())
        if (await reader.execute(count)).scalar_one() <= MAX_CANDIDATES:
            query = select_runs_among(candidates, search, columns, limit=limit)
    return await reader.execute(query)


def _select_candidates(trigrams: str) -> CompoundSelect[Any]:
    """Selects the ids of the runs that may have a text: those that SQLite's index finds, and those that it lacks."""
    indexed = select(indexed_runs.c.run).join(run_trigrams, run_trigrams.c.rowid == indexed_runs.c.number)
    indexed = indexed.where(run_trigrams.c.run_trigrams.match(trigrams))
    running = select(runs.c.id).where(IS_RUNNING)
    return union_all(indexed, select(unindexed_runs.c.run), running)


def _trigrams_of(text: str) -> str:
    """Returns FTS5's expression for the trigrams of a text, as quoted strings; empty if the text is too short."""
    text = sanitize(text)
    trigrams = list(dict.fromkeys(text[start : start + 3] for start in range(len(text) - 2)))
    return " ".join('"' + trigram.replace('"', '""') + '"' for trigram in trigrams[:MAX_TRIGRAMS])
