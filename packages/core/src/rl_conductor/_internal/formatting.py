"""Formats costs, prices, token counts, durations, sizes and reasons for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_conductor.types import Price, Usage


def join_reasons(reasons: Iterable[str]) -> str:
    """Joins reasons by semicolons, without the parts that an earlier one has, such as the same advice."""
    return "; ".join(dict.fromkeys(part for reason in reasons for part in reason.split("; ")))


def with_worker_name(error: object, *, worker: str, model: str) -> str:
    """Puts the worker's name before an error, unless the error begins with it as the name of the worker's model.

    The model of a function is called `function:NAME`; that of a vendor may have another name in its replies.
    """
    text = str(error)
    is_model = model in (worker, f"function:{worker}") and text.startswith(model)
    return text if is_model or text.startswith(f"{worker}: ") else f"{worker}: {text}"


def dollars(amount: Decimal) -> str:
    """Formats US dollars: two decimals from $1 on, four or more significant ones below."""
    if amount == 0:
        return "$0"
    if amount >= 1:
        return f"${amount:,.2f}"
    places = max(4, 1 - amount.adjusted())
    return f"${amount:.{places}f}"


def cost(usage: Usage) -> str:
    """Formats the cost of `usage`: `≥` when some calls have no known price, `?` when none has."""
    if usage.unpriced_calls:
        return f"≥ {dollars(usage.cost)}" if usage.cost else "?"
    return dollars(usage.cost)


def cost_in_words(usage: Usage) -> str:
    """Formats the cost of `usage`, with the number of calls that have no known price."""
    if not usage.unpriced_calls:
        return dollars(usage.cost)
    return f"at least {dollars(usage.cost)} ({counted(usage.unpriced_calls, 'call')} unpriced)"


def rates(price: Price) -> str:
    """Formats a price as US dollars per million input and output tokens: `$0.15/0.60`, `$0/0 + $3 a call`."""
    if price.is_free:
        return "free"
    per_call = f" + ${price.per_call:f} a call" if price.per_call else ""
    return f"${price.input:f}/{price.output:f}{per_call}"


def tokens(usage: Usage) -> str:
    """Formats the total of input and output tokens."""
    return f"{usage.total_tokens:,} tokens"


def seconds(span: float) -> str:
    """Formats a duration: `0.42 s`, `12.3 s`, `3 min 05 s`."""
    if span < 1:
        return f"{span:.2f} s"
    if span < 99.95:
        return f"{span:.1f} s"
    minutes, rest = divmod(round(span), 60)
    return f"{minutes} min {rest:02} s"


def parse_seconds(text: str | None) -> float | None:
    """Parses a duration such as `7` or `7.5s`; returns `None` unless it is a finite number of 0 or more seconds."""
    try:
        value = float((text or "").strip().removesuffix("s"))
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def megabytes(size: int) -> str:
    """Formats a number of bytes in decimal megabytes or gigabytes."""
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def counted(number: int, noun: str) -> str:
    """Formats a count with its noun: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
