"""Values: copies as pydantic makes them, and errors that say what to write."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel, ValidationError

from rl_conductor import ConfigError, Flow, Message, Policy, Sampling, Workflow
from rl_conductor.types import Card, Price, Tool, Value


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


def test_an_unchecked_value_equals_a_validated_one_and_is_serialised_in_the_same_order() -> None:
    checked, unchecked = Price(output=2, per_call=3, input=1), Price.unchecked(output=2, per_call=3, input=1)
    assert unchecked.model_fields_set == checked.model_fields_set == {"input", "output", "per_call"}
    assert list(unchecked.__dict__) == list(checked.__dict__)
    assert Message.unchecked(role="user") == Message(role="user")
    with pytest.raises(ValidationError, match="frozen"):
        unchecked.input = Decimal(3)  # type: ignore[misc]


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


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Policy, {"dney": ["a"]}, "dney\n  there is no such setting; did you mean 'deny'? ["),
        (Policy, {"deny": 3}, "deny\n  write a list ["),
        (Policy, {"forbid": [{"reader": "a", "sorce": "b"}]}, "forbid.0.sorce\n  there is no such setting; did you"),
        (Policy, {"data_rules": {"x": {"tag": []}}}, "data_rules.x.tag\n  there is no such setting; did you mean"),
        (Flow, {"reader": "a"}, "source\n  missing ["),
        (Sampling, {"temperature": "hot"}, "temperature\n  write a number ["),
        (Price, {"input": 1, "output": 2, "per_cal": 3}, "there is no such setting; did you mean 'per_call'? ["),
        (Card, {"name": "a", "descripton": "b"}, "there is no such setting; did you mean 'description'? ["),
        (Workflow, {"steps": [{"subtask": "a", "worker": "b", "acces": [0]}]}, "did you mean 'access'? ["),
    ],
)
def test_errors_in_values_that_users_write_say_what_to_write(kind: type[Value], fields: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    assert message in str(caught.value)
    assert "pydantic.dev" not in str(caught.value)


def test_errors_in_json_keep_the_words_of_pydantic_for_the_reader_of_the_json() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Policy.model_validate_json('{"dney": ["a"]}')
