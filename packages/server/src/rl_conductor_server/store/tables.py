"""The tables, in words that SQLite and Postgres both read. The migrations make them; a test holds the two together."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, Table, TypeDecorator
from sqlalchemy import String as SqlString
from sqlalchemy import Text as SqlText
from sqlalchemy import text as sql
from sqlalchemy.engine import Dialect

PICO = Decimal(10) ** 12
MAX_DOLLARS = Decimal(10) ** 6
"""Most US dollars in a row: what is beyond any run must not overflow a column and fail."""
MAX_COUNT = 10**15
"""Most tokens or calls in a row."""


class Dollars(TypeDecorator[Decimal]):
    """US dollars as whole millionths of a millionth, so that sums are exact where a database has no decimals."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """As stored."""
        return None if value is None else int((min(value, MAX_DOLLARS) * PICO).to_integral_value())

    def process_result_value(self, value: int | None, dialect: Dialect) -> Decimal | None:  # noqa: ARG002
        """As read."""
        return None if value is None else (Decimal(value) / PICO).normalize() + Decimal(0)


class Count(TypeDecorator[int]):
    """Tokens or calls; a number that is larger than `MAX_COUNT` is stored as that."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """As stored."""
        return None if value is None else min(value, MAX_COUNT)


class Text(TypeDecorator[str]):
    """Text without what databases refuse: NUL is left out, half a surrogate pair becomes `?`."""

    impl = SqlText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """As stored."""
        return None if value is None else _storable(value)


class String(TypeDecorator[str]):
    """`Text` of a limited length; what is longer is cut."""

    impl = SqlString
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """As stored."""
        return None if value is None else _storable(value)[: self.length]


def _storable(text: str) -> str:
    text = text.replace("\0", "")
    return text if text.isascii() else text.encode(errors="replace").decode()


metadata = MetaData()
UNDER_WAY = sql("status = 'running'")

runs = Table(
    "runs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("key", String(64), nullable=False),
    Column("idempotency", String(255)),
    Column("choice", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("api", String(16), nullable=False),
    Column("model", String(128), nullable=False),
    Column("status", String(16), nullable=False),
    Column("owner", String(32), nullable=False),
    Column("heartbeat", Float, nullable=False),
    Column("created", Float, nullable=False),
    Column("seconds", Float),
    Column("cost", Dollars, nullable=False),
    Column("input_tokens", Count, nullable=False),
    Column("output_tokens", Count, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("unpriced_calls", Integer, nullable=False),
    Column("labels", Text, nullable=False),
    Column("error", Text),
    Column("trace", Text),
    Column("question", Text, nullable=False, server_default=""),
    Column("answer", Text),
    Column("side", String(16)),
    Column("charged_usd", Dollars, nullable=False, server_default="0"),
    Column("charged_tokens", Count, nullable=False, server_default="0"),
    Index("runs_by_idempotency", "key", "idempotency", "choice", unique=True),
    Index("runs_by_key", "key", "created"),
    Index("runs_by_time", "created"),
    Index("runs_by_side", "model", "side", "created"),
    Index("runs_under_way", "heartbeat", sqlite_where=UNDER_WAY, postgresql_where=UNDER_WAY),
)
"""One row a run; `trace` is there once it is over. `question` and `answer` are the beginnings of what was said."""

pairs = Table(
    "pairs",
    metadata,
    Column("run", String(32), primary_key=True),
    Column("shadow", String(32), nullable=False),
    Column("route", String(128), nullable=False),
    Column("created", Float, nullable=False),
    Column("answered", String(16), nullable=False),
    Column("verdict", String(8), nullable=False),
    Column("reason", Text, nullable=False),
    Column("incumbent_cost", Dollars),
    Column("incumbent_seconds", Float, nullable=False),
    Column("conductor_cost", Dollars),
    Column("conductor_seconds", Float, nullable=False),
    Index("pairs_by_route", "route", "created"),
)
"""Two answers to one request of a route: that of `run`, which the user got, and that of `shadow`."""

canaries = Table(
    "canaries",
    metadata,
    Column("route", String(128), primary_key=True),
    Column("configured", Float, nullable=False),
    Column("percent", Float, nullable=False),
    Column("since", Float, nullable=False),
    Column("reason", Text, nullable=False),
)
"""The share of each route's requests that the conductor answers, and the one that the settings named before."""

steps = Table(
    "steps",
    metadata,
    Column("run", String(32), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)
"""What a run has done so far: its plans, at position -1, and its finished steps. Gone once the run has its trace."""

shares = Table(
    "shares",
    metadata,
    Column("run", String(32), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("worker", String(255), primary_key=True),
    Column("cost", Dollars, nullable=False),
    Column("input_tokens", Count, nullable=False),
    Column("output_tokens", Count, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("unpriced_calls", Integer, nullable=False),
    Index("shares_by_worker", "worker"),
)
"""What each worker used in a run that is over; planning is under the empty name."""

forgotten = Table(
    "forgotten",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("owner", String(32), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("cost", Dollars, nullable=False),
    Column("input_tokens", Count, nullable=False),
    Column("output_tokens", Count, nullable=False),
    Column("calls", Count, nullable=False),
    Column("unpriced_calls", Count, nullable=False),
    Column("charged_usd", Dollars, nullable=False, server_default="0"),
    Column("charged_tokens", Count, nullable=False, server_default="0"),
)
"""What runs used that are no longer kept, by the UTC day since 1970 on which they began."""

sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("expires", Float, nullable=False),
)
"""Browsers that showed the administrator's key, by the SHA-256 of what they bring since."""

records = Table(
    "records",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("run", String(32), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Index("records_by_run", "run"),
)
"""The audit record. It outlives the runs that it tells of."""
