"""Which runs a search means, and what runs have used over time, in words that SQLite and Postgres both read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Select,
    Table,
    and_,
    cast,
    func,
    or_,
    select,
    type_coerce,
    union_all,
)

from rl_conductor_server.store.models import Search
from rl_conductor_server.store.tables import forgotten, runs, shares

By = Literal["worker", "model", "key"]
"""What spending may be told apart by."""
AMOUNTS = ("cost", "input_tokens", "output_tokens", "calls", "unpriced_calls")
CHARGES = ("charged_usd", "charged_tokens")
"""What budgets count: more than the amounts where a call broke off that may have been billed."""
DAY = 86_400
SPLIT = 1_000_000
"""Sums are made of the quotients and the remainders by this."""


def condition(search: Search) -> ColumnElement[bool]:
    """True of the runs that are wanted."""
    return and_(True, *_conditions(search))


def _conditions(search: Search) -> Iterator[ColumnElement[bool]]:
    for column, value in ((runs.c.key, search.key), (runs.c.status, search.status)):
        if value is not None:
            yield column == value
    if search.model is not None:
        yield or_(runs.c.model == search.model, runs.c.model.startswith(f"{search.model}-2", autoescape=True))
    if search.since is not None:
        yield runs.c.created >= search.since
    if search.before is not None:
        yield runs.c.created < search.before
    if search.worker is not None:
        yield runs.c.id.in_(select(shares.c.run).where(shares.c.worker == search.worker))
    if search.text is not None:
        yield or_(*(column.icontains(search.text, autoescape=True) for column in (runs.c.question, runs.c.answer)))


def spent(key: str, *, since: float, but_by: str = "") -> CompoundSelect[Any]:
    """Two rows of amounts and charges: of runs that are kept and of whole days that are not, less one owner's."""
    kept = _sums(runs, key, but_by).where(runs.c.created >= since)
    gone = _sums(forgotten, key, but_by).where(forgotten.c.day * DAY >= since)
    return union_all(kept, gone)


def _sums(table: Table, key: str, but_by: str) -> Select[Any]:
    sums = (exact_sum(table.c[amount]).label(amount) for amount in AMOUNTS + CHARGES)
    return select(*sums).where(table.c.key == key, table.c.owner != but_by)


def exact_sum(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The sum of a column of integers; beyond 64 bits, where SQLite's own `sum` fails, SQLite rounds it."""
    number = type_coerce(column, BigInteger)
    whole = func.sum(number // SPLIT) * SPLIT + func.sum(number % SPLIT)
    return type_coerce(func.coalesce(whole, 0), column.type)


def spending(by: By, *, since: float, before: float, width: int) -> Select[Any]:
    """Rows of (name, number of the span since 1970, amounts...), for spans of `width` seconds."""
    span = (cast(runs.c.created, BigInteger) // width).label("span")
    source = shares if by == "worker" else runs
    name = source.c[by].label("name")
    sums = [exact_sum(source.c[amount]).label(amount) for amount in AMOUNTS]
    wanted = select(name, span, *sums).where(runs.c.created >= since, runs.c.created < before)
    if by == "worker":
        wanted = wanted.join_from(shares, runs, shares.c.run == runs.c.id)
    return wanted.group_by(name, span).order_by(span, name)
