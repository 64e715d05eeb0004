"""Our prices must charge what the price data's own calculator charges."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price
from pydantic import ValidationError

from rl_conductor.models.prices import price_of
from rl_conductor.types import Price

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
    usage = Usage(input_tokens=read, cache_read_tokens=cached, cache_write_tokens=kept, output_tokens=written)
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
