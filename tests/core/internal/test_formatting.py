"""Amounts as people write them."""

from __future__ import annotations

import pytest

from rl_conductor._internal.formatting import counted, parse_seconds, rates, with_worker_name
from rl_conductor.types import FREE, Price


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("7", 7),
        ("7.5s", 7.5),
        (" 0 ", 0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("inf", None),
        ("nan", None),
    ],
)
def test_seconds_are_read_only_when_they_can_be_waited(text: str | None, wait: float | None) -> None:
    assert parse_seconds(text) == wait


@pytest.mark.parametrize(
    ("price", "text"),
    [
        (FREE, "free"),
        (Price(input="0.15", output=1), "$0.15/1"),
        (Price(input=2, output=8, per_call="0.01"), "$2/8 + $0.01 a call"),
        (Price(input=0, output=0, per_call=3), "$0/0 + $3 a call"),
    ],
)
def test_a_price_has_all_of_its_rates(price: Price, text: str) -> None:
    assert rates(price) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 calls"), (1, "1 call"), (2, "2 calls"), (1234, "1,234 calls")])
def test_a_count_has_the_plural_and_separators_of_thousands(number: int, text: str) -> None:
    assert counted(number, "call") == text


@pytest.mark.parametrize(
    ("error", "model", "text"),
    [
        ("own: it broke", "own", "own: it broke"),
        ("own raised ValueError: it broke", "own", "own raised ValueError: it broke"),
        ("function:own raised ValueError: it broke", "function:own", "function:own raised ValueError: it broke"),
        ("function:other raised", "function:other", "own: function:other raised"),
        ("openai:m: it broke", "openai:m", "own: openai:m: it broke"),
        ("the policy forbids it", "own", "own: the policy forbids it"),
        ("own: it broke", "openai:own", "own: it broke"),
    ],
)
def test_an_error_names_a_worker_once_also_if_its_model_has_the_same_name(error: str, model: str, text: str) -> None:
    assert with_worker_name(error, worker="own", model=model) == text
