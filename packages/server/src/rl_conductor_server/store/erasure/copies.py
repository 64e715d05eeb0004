"""Finds the runs that repeat others: comparisons of experiments, replays, and hits of the response cache."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import and_, exists, or_, select

from rl_conductor_server.store.models import REPLAY, REPLAY_OF, SHADOW_OF
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.tables import IS_INTERNAL, runs, users

Origins = dict[str, str]
"""Runs, each with the one that it repeats, or that it is."""


async def find_copies(reader: StoreReader, run_ids: Collection[str]) -> Origins:
    """Returns runs and their copies, also those of copies, each with the one of `run_ids` that it repeats."""
    origins = await _find_hits(reader, run_ids) | {run: run for run in run_ids}
    return await _add_internal_runs(reader, origins)


async def find_internal_copies(reader: StoreReader, run: str) -> list[str]:
    """Returns the comparisons and replays of a run."""
    origins = await _add_internal_runs(reader, {run: run})
    return [copy for copy in origins if copy != run]


async def _add_internal_runs(reader: StoreReader, origins: Origins) -> Origins:
    comparisons = [json.dumps({SHADOW_OF: run}) for run in origins]
    may_be_copy = and_(IS_INTERNAL, or_(runs.c.api == REPLAY, runs.c.labels.in_(comparisons)))
    rows = (await reader.execute(select(runs.c.id, runs.c.labels).where(may_be_copy))).all()
    repeated = {row.id: _repeated_run(row.labels) for row in rows}
    while new := {run: origins[of] for run, of in repeated.items() if of in origins and run not in origins}:
        origins = origins | new
    return origins


def _repeated_run(labels: str) -> str:
    values: dict[str, str] = json.loads(labels)
    return values.get(SHADOW_OF) or values.get(REPLAY_OF) or ""


async def _find_hits(reader: StoreReader, run_ids: Collection[str]) -> Origins:
    """Returns the hits of the response cache with the answers of runs, but for those of other users.

    Another user has sent the same request, so its text is theirs as well.
    """
    hit, owner = runs.alias(), users.alias()
    is_hit = and_(hit.c.key == runs.c.key, hit.c.cache_digest == runs.c.cache_digest, hit.c.cached_from == runs.c.id)
    owners = select(owner.c.name).where(owner.c.run == runs.c.id).correlate(runs)
    has_other_user = exists().where(users.c.run == hit.c.id, users.c.name.not_in(owners)).correlate(hit, runs)
    query = select(hit.c.id, runs.c.id.label("origin")).join(hit, is_hit)
    rows = await reader.execute(query.where(runs.c.id.in_(run_ids), ~has_other_user))
    return {row.id: row.origin for row in rows}
