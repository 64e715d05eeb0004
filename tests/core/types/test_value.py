"""Copies of values: as pydantic makes them."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from rl_conductor import ConfigError, Message, Sampling
from rl_conductor.types import Tool


def test_a_copy_has_the_fields_that_were_set_and_those_that_are_replaced() -> None:
    copy = Sampling(temperature=0.5).model_copy(update={"seed": 7})
    assert copy == Sampling(temperature=0.5, seed=7)
    assert copy.model_fields_set == {"temperature", "seed"}
    assert copy.model_dump_json() == Sampling(temperature=0.5, seed=7).model_dump_json()


def test_the_original_of_a_copy_does_not_change_and_the_copy_is_frozen() -> None:
    message = Message.user("Hello.")
    copy = message.model_copy(update={"name": "ada"})
    assert (message.name, message.model_fields_set) == (None, {"role", "content"})
    with pytest.raises(ValidationError, match="frozen"):
        copy.name = "bob"  # type: ignore[misc]


def test_copies_equal_those_of_pydantic() -> None:
    tool = Tool(name="add", parameters={"type": "object"})
    for update in (None, {}, {"description": "Adds."}):
        ours, theirs = tool.model_copy(update=update), BaseModel.model_copy(tool, update=update)
        assert (ours, ours.model_fields_set, hash(ours.name)) == (theirs, theirs.model_fields_set, hash(theirs.name))


def test_a_deep_copy_shares_no_dictionary() -> None:
    tool = Tool(name="add")
    assert tool.model_copy().parameters is tool.parameters
    assert tool.model_copy(deep=True).parameters is not tool.parameters


def test_a_value_of_another_type_is_refused_with_what_to_write() -> None:
    sampling = Sampling(seed=7)
    default = Sampling()
    assert Sampling.or_default(sampling, default) is sampling
    assert Sampling.or_default(None, default) is default
    for value, code in (({"seed": 7}, "Sampling(**{'seed': 7})"), ({}, "Sampling()"), (7, "Sampling(...)")):
        with pytest.raises(ConfigError) as caught:
            Sampling.or_default(value, default)
        assert str(caught.value) == f"{value!r} is not an instance of Sampling; write {code}, or None for the default"
