"""Statements and expressions that SQLite and PostgreSQL write differently."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Float, LargeBinary, Table, TextualSelect, cast, func, literal_column, text
from sqlalchemy.dialects import postgresql, sqlite

DATABASE_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}
"""SQL expressions for the current time in seconds since 1970; SQLite's is that of the machine."""


def insert_into(table: Table, dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Builds an `INSERT` that may have a clause for conflicts."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def database_now(dialect: str) -> ColumnElement[float]:
    """Builds an expression for the database's current time."""
    return literal_column(DATABASE_NOW[dialect], Float)


def select_now(dialect: str) -> TextualSelect:
    """Builds a query for the database's current time."""
    return text(f"SELECT {DATABASE_NOW[dialect]} AS now").columns(now=Float)


def count_octets(column: ColumnElement[Any], *, dialect: str) -> ColumnElement[int]:
    """Builds the number of bytes of a column of text; 0 if it is null."""
    octets = func.length(cast(column, LargeBinary)) if dialect == "sqlite" else func.octet_length(column)
    return func.coalesce(octets, 0)
