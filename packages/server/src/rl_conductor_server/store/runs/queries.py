"""Builds the larger read queries in SQL that both SQLite and PostgreSQL understand. Performs no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Select,
    SelectBase,
    Table,
    and_,
    exists,
    false,
    func,
    not_,
    or_,
    select,
    type_coerce,
    union_all,
)

from rl_conductor.trace.feedback import POSITIVE_SCORE
from rl_conductor_server.store.models import Search
from rl_conductor_server.store.tables import (
    CHARGE_COLUMNS,
    DAY,
    RESERVED_COLUMNS,
    USAGE_COLUMNS,
    deleted_usage,
    feedback,
    runs,
    steps,
    users,
    worker_usage,
)

LISTED_COLUMNS = [
    column
    for column in runs.columns
    if column.name not in ("trace", "owner", "heartbeat", *CHARGE_COLUMNS, *RESERVED_COLUMNS)
]
"""Columns of `RunRow`."""
KEYS_PER_QUERY = 5_000
"""Maximum number of keys that a query names, each up to twice: SQLite refuses more than 32,766 parameters,
unless it was built otherwise, and Postgres more than 65,535."""
SPLIT = 1_000_000
"""`exact_sum` adds up the quotients and the remainders of a division by this."""


def select_runs(search: Search, columns: Sequence[ColumnElement[Any]], *, limit: int) -> Select[Any]:
    """Select columns of the runs that match, newest first."""
    query, created = select(*columns).select_from(runs), runs.c.created
    for table, condition in _conditions_elsewhere(search):  # an index has the runs of a user or a worker by time
        query = query.join(table, table.c.run == runs.c.id).where(condition)
        created = table.c.created
    query = query.where(*time_conditions(search, created), *_conditions(search))
    return query.order_by(created.desc(), runs.c.id).limit(limit)


def select_runs_among(
    candidates: SelectBase, search: Search, columns: Sequence[ColumnElement[Any]], *, limit: int
) -> Select[Any]:
    """Selects like `select_runs`, but reads only the runs with the ids that `candidates` selects."""
    elsewhere = (exists().where(table.c.run == runs.c.id, is_it) for table, is_it in _conditions_elsewhere(search))
    is_match = and_(*time_conditions(search, runs.c.created), *elsewhere, *_conditions(search))
    opaque = func.coalesce(is_match, false())  # else SQLite might read all runs of a key, and look for each in these
    query = select(*columns).where(runs.c.id.in_(candidates), opaque)
    return query.order_by(runs.c.created.desc(), runs.c.id).limit(limit)


def _conditions_elsewhere(search: Search) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Yield the tables that must have a row of the run, and the conditions on it."""
    if search.user is not None:
        yield users, users.c.name == search.user.lower()
    if search.worker is not None:
        yield worker_usage, worker_usage.c.worker == search.worker


def time_conditions(search: Search, created: ColumnElement[float]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on the time at which a run began."""
    if search.since is not None:
        yield created >= search.since
    if search.before is not None:
        yield created < search.before


def _conditions(search: Search) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on rows of `runs` other than their time, users and workers."""
    for column, value in ((runs.c.key, search.key), (runs.c.status, search.status)):
        if value is not None:
            yield column == value
    if search.model is not None:
        yield is_release_of(runs.c.model, search.model)
    if search.feedback == "none":
        yield runs.c.id.not_in(select(feedback.c.run))
    elif search.feedback is not None:
        is_positive = feedback.c.score >= POSITIVE_SCORE
        condition = is_positive if search.feedback == "positive" else not_(is_positive)
        yield runs.c.id.in_(select(feedback.c.run).where(condition))
    if search.session is not None:
        yield is_of_session(search.session)
    if search.metadata is not None:
        name, mark, value = (part.strip() for part in search.metadata.partition("="))
        yield _has_label(name, value) if mark else runs.c.labels.icontains(_json_text(name), autoescape=True)
    if search.text is not None:
        yield or_(*(column.icontains(search.text, autoescape=True) for column in (runs.c.question, runs.c.answer)))


def is_of_session(session: str) -> ColumnElement[bool]:
    """Build the condition that a run belongs to a session, or is the first one of it."""
    return or_(runs.c.session == session, runs.c.id == session)


def _has_label(name: str, value: str) -> ColumnElement[bool]:
    """Build the condition that the labels have an entry. In their JSON, no quoted text can look like one."""
    return runs.c.labels.icontains(f'"{_json_text(name)}": "{_json_text(value)}"', autoescape=True)


def _json_text(text: str) -> str:
    return json.dumps(text)[1:-1]


def is_release_of(column: ColumnElement[str], name: str) -> ColumnElement[bool]:
    """Build the condition that a column of pinned names holds `name` itself or a release of it, `name-2...`."""
    return or_(column == name, column.startswith(f"{name}-2", autoescape=True))


def select_steps(run: str) -> Select[Any]:
    """Select the plans and finished steps of a run that has not ended, in order."""
    return select(steps).where(steps.c.run == run).order_by(steps.c.round, steps.c.position)


def split_keys(keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield API keys in as many parts as one query each may name."""
    rest = iter(keys)
    while part := list(islice(rest, KEYS_PER_QUERY)):
        yield part


def select_usage(keys: Collection[str], *, since: float) -> CompoundSelect[Any]:
    """Select up to two rows of usage of each API key: of stored runs, and of the days of deleted ones."""
    return _sum_columns(USAGE_COLUMNS, keys, since)


def select_charges(keys: Collection[str], *, since: float) -> CompoundSelect[Any]:
    """Select up to two rows of charges to each API key, like `select_usage`; an index has all that it reads."""
    return _sum_columns(CHARGE_COLUMNS, keys, since)


def _sum_columns(names: Sequence[str], keys: Collection[str], since: float) -> CompoundSelect[Any]:
    def sums(table: Table) -> Select[Any]:
        columns = (exact_sum(table.c[name]).label(name) for name in names)
        return select(table.c.key, *columns).where(table.c.key.in_(keys)).group_by(table.c.key)

    return union_all(
        sums(runs).where(runs.c.created >= since), sums(deleted_usage).where(deleted_usage.c.day >= since / DAY)
    )


def exact_sum(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Sum a column of integers without the error that SQLite's `sum` raises beyond 64 bits; there it rounds instead."""
    number = type_coerce(column, BigInteger)
    total = func.sum(number // SPLIT) * SPLIT + func.sum(number % SPLIT)
    return type_coerce(func.coalesce(total, 0), column.type)


def is_paid_by(key: str | None) -> tuple[ColumnElement[bool], ...]:
    """Returns the condition that a run belongs to an API key; empty for the runs of all keys."""
    return () if key is None else (runs.c.key == key,)


def select_workers() -> Select[Any]:
    """Select the names of all workers that were called, without reading all of their calls."""
    names = select(func.min(worker_usage.c.worker).label("name")).cte("names", recursive=True)
    following = select(func.min(worker_usage.c.worker)).where(worker_usage.c.worker > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    return select(names.c.name).where(names.c.name.is_not(None)).order_by(names.c.name)
