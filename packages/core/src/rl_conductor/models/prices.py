"""Looks up vendors' prices in the data of the `genai-prices` package, without network access.

Covers text only: a `Price` has no rates for audio, images or vendors' own tools (web search). Cache writes use the
vendor's default rate, which for Anthropic is the five-minute cache, the only one that our adapter uses.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from rl_conductor.types import Price, PriceTier

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

THOUSAND = Decimal(1000)


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
