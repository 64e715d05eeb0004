"""Amounts as people write them."""

from __future__ import annotations

import pytest

from rl_conductor._internal.formatting import parse_seconds


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
