"""Our prices must charge what the price data's own calculator charges."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest
from genai_prices import Usage as VendorUsage
from genai_prices import calc_price
from pydantic import ValidationError

from rl_conductor.models.prices import price_of, priced
from rl_conductor.types import FREE, Price, Usage

TOKENS = [
    *((0, 0, 0, 0), (1000, 400, 500, 300), (100_000, 0, 0, 1), (100_001, 50_000, 1, 1)),
    *((200_000, 0, 200_000, 1), (200_001, 100_000, 50_000, 500)),
]
"""Input, of that cached before and now, and output."""

MODELS = [
    ("openai", "gpt-5"),
    ("openai", "gpt-4o-mini"),
    ("anthropic", "claude-sonnet-4-5"),
    ("google", "gemini-2.5-pro"),
    ("openrouter", "x-ai/grok-4-fast"),
    ("perplexity", "sonar"),
]


@pytest.mark.parametrize(("provider", "model"), MODELS)
@pytest.mark.parametrize(("read", "cached", "kept", "written"), TOKENS)
def test_cost_equals_the_price_datas_own(
    provider: str, model: str, read: int, cached: int, kept: int, written: int
) -> None:
    price = price_of(provider, model)
    assert price is not None
    usage = VendorUsage(input_tokens=read, cache_read_tokens=cached, cache_write_tokens=kept, output_tokens=written)
    theirs = calc_price(usage, model, provider_id=provider).total_price
    counts = {"cached_tokens": cached, "cache_write_tokens": kept}
    assert price.cost(input_tokens=read, output_tokens=written, **counts) == theirs


def test_long_inputs_cost_more_where_the_vendor_says_so() -> None:
    price = price_of("anthropic", "claude-sonnet-4-5")
    assert price is not None
    assert [tier.above for tier in price.tiers] == [200_000]
    assert price.tiers[0].input > price.input


def test_a_price_per_call_is_kept() -> None:
    price = price_of("perplexity", "sonar")
    assert price is not None
    assert price.per_call == Decimal("0.012")


@pytest.mark.parametrize(("provider", "model"), [("openai", "no-such-model"), ("ollama", "qwen3"), ("nobody", "gpt-5")])
def test_an_unknown_price_is_none(provider: str, model: str) -> None:
    assert price_of(provider, model) is None


def test_a_model_that_is_not_paid_by_tokens_has_no_price() -> None:
    assert price_of("openai", "tts-1") is None


def test_price_data_is_loaded_only_when_a_price_is_asked() -> None:
    code = "import sys, rl_conductor.models.prices; assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("rate", ["input", "output", "cached_input", "cache_write", "per_call"])
def test_a_negative_rate_is_rejected(rate: str) -> None:
    with pytest.raises(ValidationError, match=f"{rate}\n.*greater than or equal to 0"):
        Price.model_validate({"input": 1, "output": 1, rate: -1})


def test_a_call_costs_its_price_and_counts_as_one() -> None:
    used = Usage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=1_000_000)
    price = Price(input=Decimal(2), cached_input=Decimal(1), output=Decimal(8))
    assert priced(used, price) == used.model_copy(update={"calls": 1, "cost": Decimal("9.5")})
    assert priced(used, FREE).cost == 0
    assert priced(used, None) == used.model_copy(update={"calls": 1, "unpriced_calls": 1})


def test_a_call_whose_tokens_were_not_counted_has_no_known_cost_unless_they_cost_nothing() -> None:
    assert priced(Usage(), Price(input=Decimal(2), output=Decimal(8))) == Usage(calls=1, unpriced_calls=1)
    assert priced(Usage(), Price(input=Decimal(0), output=Decimal(0), per_call=Decimal(3))).cost == 3
    assert priced(Usage(), FREE) == Usage(calls=1)
    assert priced(Usage(output_tokens=1), Price(input=Decimal(2), output=Decimal(8))).unpriced_calls == 0


def test_a_vendor_can_report_no_more_tokens_than_any_call_uses() -> None:
    made_up = Usage(input_tokens=2**62, cached_tokens=2**61, cache_write_tokens=1, output_tokens=10**40)
    used = priced(made_up, Price(input=Decimal(2), output=Decimal(8)))
    counts = (used.input_tokens, used.cached_tokens, used.cache_write_tokens, used.output_tokens)
    assert counts == (10**9, 10**9, 0, 10**9)
    assert used.cost < 20_000
    assert priced(made_up, None).output_tokens == 10**9


def test_a_vendor_can_report_no_more_tokens_of_a_part_than_of_the_whole() -> None:
    made_up = Usage(input_tokens=5, cached_tokens=3, cache_write_tokens=9, output_tokens=5, reasoning_tokens=999)
    used = priced(made_up, FREE)
    assert (used.cached_tokens, used.cache_write_tokens, used.reasoning_tokens) == (3, 2, 5)
