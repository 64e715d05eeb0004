"""Finds the runs that repeat others: comparisons of experiments, replays, and hits of the response cache.

They are found in the transaction that erases them. A copy that ends later finds that its run was erased.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, and_, exists, or_, select

from rl_conductor_server.store.models import REPLAY, REPLAY_OF, SHADOW_OF
from rl_conductor_server.store.tables import IS_INTERNAL, runs, users

Origins = dict[str, str]
"""Runs, each with the one that it repeats, or that it is."""


def find_copies(connection: Connection, run_ids: Collection[str]) -> Origins:
    """Returns runs and their copies, also those of copies, each with the one of `run_ids` that it repeats."""
    origins = _find_hits(connection, run_ids) | {run: run for run in run_ids}
    return _add_internal_runs(connection, origins)


def find_internal_copies(connection: Connection, run: str) -> list[str]:
    """Returns the comparisons and replays of a run."""
    origins = _add_internal_runs(connection, {run: run})
    return [copy for copy in origins if copy != run]


def find_erased(connection: Connection, run_ids: Collection[str]) -> set[str]:
    """Returns those of the runs, which had ended, whose content was erased."""
    query = select(runs.c.id).where(runs.c.id.in_(run_ids), runs.c.trace.is_(None))
    return set(connection.execute(query).scalars())


def _add_internal_runs(connection: Connection, origins: Origins) -> Origins:
    comparisons = [json.dumps({SHADOW_OF: run}) for run in origins]
    # With its condition in both parts, SQLite uses the index of internal runs for both.
    is_comparison = and_(IS_INTERNAL, runs.c.labels.in_(comparisons))
    may_be_copy = or_(and_(IS_INTERNAL, runs.c.api == REPLAY), is_comparison)
    rows = connection.execute(select(runs.c.id, runs.c.labels).where(may_be_copy)).all()
    repeated = {row.id: _repeated_run(row.labels) for row in rows}
    while new := {run: origins[of] for run, of in repeated.items() if of in origins and run not in origins}:
        origins = origins | new
    return origins


def _repeated_run(labels: str) -> str:
    values: dict[str, str] = json.loads(labels)
    return values.get(SHADOW_OF) or values.get(REPLAY_OF) or ""


def _find_hits(connection: Connection, run_ids: Collection[str]) -> Origins:
    """Returns the hits of the response cache with the answers of runs, but for those of other users.

    Another user has sent the same request, so its text is theirs as well.
    """
    hit, owner = runs.alias(), users.alias()
    is_hit = and_(hit.c.key == runs.c.key, hit.c.cache_digest == runs.c.cache_digest, hit.c.cached_from == runs.c.id)
    owners = select(owner.c.name).where(owner.c.run == runs.c.id).correlate(runs)
    has_other_user = exists().where(users.c.run == hit.c.id, users.c.name.not_in(owners)).correlate(hit, runs)
    query = select(hit.c.id, runs.c.id.label("origin")).join(hit, is_hit)
    rows = connection.execute(query.where(runs.c.id.in_(run_ids), ~has_other_user))
    return {row.id: row.origin for row in rows}
