"""Vendors' prices, from the data of the `genai-prices` package and without network access, and the cost of a call.

The prices cover text only: a `Price` has no rates for audio, images or vendors' own tools (web search). Cache writes
use the vendor's default rate, which for Anthropic is the five-minute cache, the only one that our adapter uses.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING

from rl_conductor.types import Price, PriceTier, Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

THOUSAND = Decimal(1000)

MAX_TOKENS_PER_CALL = 10**9
"""Maximum tokens that one call can report: vendors' counts are untrusted and must fit into a database."""

TOKEN_COUNTS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
"""The fields of `Usage` that vendors report."""
_token_counts = attrgetter(*TOKEN_COUNTS)


def priced(usage: Usage, price: Price | None) -> Usage:
    """Adds the cost to the usage of one call, or counts it as unpriced if its price or its tokens are unknown.

    Counts above `MAX_TOKENS_PER_CALL` are lowered to it, and those of a part to those of the whole.
    """
    largest = max(_token_counts(usage))
    if largest > MAX_TOKENS_PER_CALL:
        usage = usage.model_copy(update={name: min(getattr(usage, name), MAX_TOKENS_PER_CALL) for name in TOKEN_COUNTS})
    exceeds_input = usage.cached_tokens + usage.cache_write_tokens > usage.input_tokens
    if exceeds_input or usage.reasoning_tokens > usage.output_tokens:
        usage = _with_parts_in_whole(usage)
    counted = usage.input_tokens or usage.output_tokens
    if price is None or (not counted and (price.input or price.output)):
        return usage.model_copy(update={"calls": 1, "unpriced_calls": 1})
    if not largest:
        return usage.model_copy(update={"calls": 1, "cost": price.per_call})
    cost = price.cost(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    return usage.model_copy(update={"calls": 1, "cost": cost})


def _with_parts_in_whole(usage: Usage) -> Usage:
    """Lowers the counts of cached and reasoning tokens to those that they are a part of."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    parts = {
        "cached_tokens": cached,
        "cache_write_tokens": min(usage.cache_write_tokens, usage.input_tokens - cached),
        "reasoning_tokens": min(usage.reasoning_tokens, usage.output_tokens),
    }
    return usage.model_copy(update=parts)


@cache
def price_of(provider: str, model: str) -> Price | None:
    """Returns today's price of `model`, as `provider` names it, or `None` if it is unknown.

    `provider` is one of the price data's ids, such as `openai`, `anthropic`, `google` or `openrouter`.
    """
    # The price data takes 0.3 s to import and is not needed if the user sets all prices.
    from genai_prices import Usage, calc_price  # noqa: PLC0415

    try:
        rates = calc_price(Usage(), model, provider_id=provider).model_price
    except LookupError:
        return None
    return _price(rates)


def _price(rates: ModelPrice) -> Price | None:
    if rates.input_mtok is None:
        return None
    per_thousand = _rate(rates.requests_kcount, 0)
    return Price(
        input=_rate(rates.input_mtok, 0),
        output=_rate(rates.output_mtok, 0),
        cached_input=_optional_rate(rates.cache_read_mtok, 0),
        cache_write=_optional_rate(rates.cache_write_mtok, 0),
        per_call=per_thousand / THOUSAND,
        tiers=tuple(_tier(rates, above) for above in _thresholds(rates)),
    )


def _tier(rates: ModelPrice, above: int) -> PriceTier:
    return PriceTier(
        above=above,
        input=_rate(rates.input_mtok, above + 1),
        output=_rate(rates.output_mtok, above + 1),
        cached_input=_optional_rate(rates.cache_read_mtok, above + 1),
        cache_write=_optional_rate(rates.cache_write_mtok, above + 1),
    )


def _thresholds(rates: ModelPrice) -> list[int]:
    kinds = (rates.input_mtok, rates.output_mtok, rates.cache_read_mtok, rates.cache_write_mtok)
    return sorted(
        {tier.start for kind in kinds if kind is not None and not isinstance(kind, Decimal) for tier in kind.tiers}
    )


def _optional_rate(kind: Decimal | TieredPrices | None, tokens: int) -> Decimal | None:
    return None if kind is None else _rate(kind, tokens)


def _rate(kind: Decimal | TieredPrices | None, tokens: int) -> Decimal:
    """Returns the rate for one kind of token in a call with `tokens` input tokens; zero if the vendor lists none."""
    if kind is None or isinstance(kind, Decimal):
        return kind or Decimal(0)
    return next((tier.price for tier in reversed(kind.tiers) if tokens > tier.start), kind.base)
