"""Money, tokens and seconds as people read and write them. Pure."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite

from rl_conductor.types import Usage


def dollars(amount: Decimal) -> str:
    """US dollars with the digits that matter."""
    if amount == 0:
        return "$0"
    if amount >= 1:
        return f"${amount:,.2f}"
    places = max(4, 1 - amount.adjusted())
    return f"${amount:.{places}f}"


def cost(usage: Usage) -> str:
    """What `usage` cost, briefly: `≥` where some calls have no known price, `?` where none has."""
    if usage.unpriced_calls:
        return f"≥ {dollars(usage.cost)}" if usage.cost else "?"
    return dollars(usage.cost)


def cost_in_words(usage: Usage) -> str:
    """What `usage` cost, and how sure that is."""
    if not usage.unpriced_calls:
        return dollars(usage.cost)
    return f"at least {dollars(usage.cost)} ({counted(usage.unpriced_calls, 'call')} unpriced)"


def tokens(usage: Usage) -> str:
    """Tokens read and written."""
    return f"{usage.total_tokens:,} tokens"


def seconds(span: float) -> str:
    """A span of time: `0.42 s`, `12.3 s`, `3 min 05 s`."""
    if span < 1:
        return f"{span:.2f} s"
    if span < 99.95:
        return f"{span:.1f} s"
    minutes, rest = divmod(round(span), 60)
    return f"{minutes} min {rest:02} s"


def seconds_in(text: str | None) -> float | None:
    """The seconds that a user or a vendor wrote (`7` or `7.5s`); `None` when these are none that can be waited."""
    try:
        value = float((text or "").strip().removesuffix("s"))
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def megabytes(size: int) -> str:
    """Bytes as vendors count them."""
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
