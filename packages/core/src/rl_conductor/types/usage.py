"""Tokens, calls and cost of model calls."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING

from pydantic import Field

from rl_conductor.types.value import DecimalInput, Dollars, Value


class Usage(Value):
    """Tokens, calls and cost; add two with `+`."""

    input_tokens: int = Field(default=0, ge=0)
    """All input tokens, cached ones included."""
    cached_tokens: int = Field(default=0, ge=0)
    """The part of `input_tokens` that was read from the vendor's cache."""
    cache_write_tokens: int = Field(default=0, ge=0)
    """The part of `input_tokens` that was written to the vendor's cache."""
    output_tokens: int = Field(default=0, ge=0)
    """All output tokens, reasoning included."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """The part of `output_tokens` spent on reasoning."""
    calls: int = Field(default=0, ge=0)
    """Number of calls that were made, failed ones included."""
    cost: Dollars = Field(default=Decimal(0), ge=0)
    """US dollars, for the calls whose price is known."""
    unpriced_calls: int = Field(default=0, ge=0)
    """Calls whose price is unknown: when this is not 0, `cost` is a lower bound."""
    cached_calls: int = Field(default=0, ge=0)
    """Calls answered from a reply cache: counted with their original usage, but not made or paid again."""
    cached_seconds: float = Field(default=0.0, ge=0)
    """The original duration of cached calls, minus the time that their replies took now."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            input_tokens: int = 0,
            cached_tokens: int = 0,
            cache_write_tokens: int = 0,
            output_tokens: int = 0,
            reasoning_tokens: int = 0,
            calls: int = 0,
            cost: DecimalInput = 0,
            unpriced_calls: int = 0,
            cached_calls: int = 0,
            cached_seconds: float = 0.0,
        ) -> None: ...

    @property
    def total_tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return total((self, other))


_NAMES = tuple(Usage.model_fields)
_values = itemgetter(*_NAMES)


def total(usages: Iterable[Usage]) -> Usage:
    """Sums `usages`; zero when there are none."""
    items = tuple(usages)
    if len(items) < 2:
        return items[0] if items else Usage()
    # Reads `__dict__`, as the attributes of pydantic's models take twice as long.
    sums = map(sum, zip(*[_values(usage.__dict__) for usage in items], strict=True))
    return items[0].model_copy(update=dict(zip(_NAMES, sums, strict=True)))
