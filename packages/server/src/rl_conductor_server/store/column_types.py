"""Types of columns: exact dollars, bounded counts, and text that every database accepts."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import BigInteger, TypeDecorator
from sqlalchemy import String as SqlString
from sqlalchemy import Text as SqlText
from sqlalchemy.engine import Dialect

PICO = Decimal(10) ** 12
MAX_DOLLARS = Decimal(10) ** 6
"""Larger amounts in one row are stored as this, so that an absurd value can't overflow a column."""
MAX_COUNT = 10**15
"""Larger numbers of tokens or calls in one row are stored as this."""


class Dollars(TypeDecorator[Decimal]):
    """US dollars, stored as an integer of 10^-12 dollars: sums are exact even in databases without decimals."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else int((min(value, MAX_DOLLARS) * PICO).to_integral_value())

    def process_result_value(self, value: int | None, dialect: Dialect) -> Decimal | None:  # noqa: ARG002
        return None if value is None else (Decimal(value) / PICO).normalize() + Decimal(0)


class Count(TypeDecorator[int]):
    """A number of tokens or calls, at most `MAX_COUNT`."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else min(value, MAX_COUNT)


class Text(TypeDecorator[str]):
    """Text without the characters that databases reject: NUL is removed, a lone surrogate becomes `?`."""

    impl = SqlText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else sanitize(value)


class String(TypeDecorator[str]):
    """`Text` truncated to a maximum length."""

    impl = SqlString
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else sanitize(value)[: self.length]


def sanitize(text: str) -> str:
    """Returns text as `Text` stores it."""
    text = text.replace("\0", "")
    return text if text.isascii() else text.encode(errors="replace").decode()
