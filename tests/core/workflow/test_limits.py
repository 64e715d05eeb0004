"""Limits are sane."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rl_conductor.workflow.limits import Limits


def test_a_limit_in_dollars_is_told_with_every_digit() -> None:
    limits = Limits(usd=Decimal("3E-7"))
    assert limits.model_dump(mode="json")["usd"] == "0.0000003"
    assert Limits.model_validate_json(limits.model_dump_json()) == limits


@pytest.mark.parametrize(
    "wrong",
    [
        {"usd": -1},
        {"usd": "1e-999999999"},
        {"usd": "1e999999999"},
        {"tokens": -1},
        {"tokens": 10**19},
        {"calls": 0},
        {"seconds": 0},
        {"seconds": float("inf")},
        {"seconds": float("nan")},
        {"rounds": 0},
        {"steps": 0},
        {"concurrency": 0},
        {"depth": 0},
        {"hedges": -1},
        {"reply_chars": 0},
        {"dollars": 1},
    ],
)
def test_limits_that_leave_nothing_or_do_not_exist_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Limits(**wrong)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"calls": True}, "calls\n  write a whole number of 1 or more ["),
        ({"tokens": 10**16}, "tokens\n  write a whole number of 0 or more, and at most 1,000,000,000,000,000 ["),
        ({"seconds": True}, "seconds\n  write a number of seconds above 0 ["),
        ({"steps": "many"}, "steps\n  write a whole number of 1 or more ["),
        ({"hedges": None}, "hedges\n  write a whole number of 0 or more ["),
        ({"usd": "a lot"}, "usd\n  write an amount of US dollars of 0 or more, with at most 60 digits ["),
        ({"cals": 3}, "cals\n  there is no such setting; did you mean 'calls'? ["),
    ],
)
def test_errors_of_limits_say_what_to_write(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Limits(**limits)
    assert message in str(caught.value)
    assert "pydantic.dev" not in str(caught.value)


def test_errors_of_limits_inside_of_another_value_keep_their_path() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, Limits]).validate_python({"mini": {"calls": 0}})
    assert [error["loc"] for error in caught.value.errors()] == [("mini", "calls")]


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "usd": st.none() | st.decimals(0, 10, places=2),
        "tokens": st.none() | st.integers(0, 9),
        "calls": st.none() | st.integers(1, 9),
        "seconds": st.none() | st.floats(0.1, 9),
        "rounds": st.integers(1, 9),
        "steps": st.integers(1, 9),
    },
).map(Limits.model_validate)


@given(own=LIMITS, others=st.lists(st.none() | LIMITS, max_size=3))
def test_each_limit_is_the_lowest_that_is_set(own: Limits, others: list[Limits | None]) -> None:
    lowered = own.lowered(*others)
    for name in Limits.model_fields:
        values = [getattr(own, name)]
        values += [getattr(each, name) for each in others if each and name in each.model_fields_set]
        assert getattr(lowered, name) == min((value for value in values if value is not None), default=None)


def test_limits_that_are_not_set_lower_nothing() -> None:
    own = Limits(seconds=9, rounds=3, steps=8)

    assert own.lowered(None, Limits()) is own
    assert own.lowered(Limits(seconds=None, usd=None)) == own
    assert own.lowered(Limits(seconds=5), None, Limits(seconds=7, steps=2)) == Limits(seconds=5, rounds=3, steps=2)
