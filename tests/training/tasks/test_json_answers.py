from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.scoring import Sample, Score
from rl_conductor_training.tasks.scorers.json_answers import json_equal

ANN = '{"name": "Ann", "age": 3}'
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)


async def score(expected: str, reply: str) -> Score:
    return await json_equal(Sample(id="1", question="Who?", answer=expected), reply)


@pytest.mark.parametrize(
    "reply",
    [
        '{"age":3.0,"name":"Ann"}',
        '```json\n{\n  "name": "Ann",\n  "age": 3\n}\n```',
        'First I thought {"name": "Bob"}.\n```\n{"name": "Ann", "age": 3}\n```\nThat is all.',
        'Answer: {"name": "Ann", "age": 3}',
        'Here {it} is: {"name": "Ann", "age": 3}\nI left out the rest, see [1].',
        r"\boxed{{" + '"name": "Ann", "age": 3}}',
    ],
)
async def test_json_is_found_in_a_reply_and_compared_by_value(reply: str) -> None:
    assert (await score(ANN, reply)).right


@pytest.mark.parametrize(
    ("reply", "explanation"),
    [
        ('{"name": "Ann"}', "the key 'age' is missing"),
        ('{"name": "Ann", "age": 3, "x": 1}', "there is a key 'x' too many"),
        ('{"name": "Ann", "age": "3"}', 'age: "3" was found, but 3 is right'),
        ('{"name": "ann", "age": 3}', 'name: "ann" was found, but "Ann" is right'),
        ('{"name": "Ann", "age": null}', "age: null was found, but 3 is right"),
        ("[3]", "a list was found, but an object is right"),
        ("{'name': 'Ann', 'age': 3}", "the reply has no valid JSON"),
        ('{"name": "Ann", "age": 4, "age": 3}', "the reply has no valid JSON"),
        ('{"name": "Ann", "age": NaN}', "the reply has no valid JSON"),
        ("Ann is 3.", "the reply has no valid JSON"),
        ("", "the reply has no valid JSON"),
    ],
)
async def test_the_first_difference_is_explained(reply: str, explanation: str) -> None:
    result = await score(ANN, reply)
    assert (result.value, result.explanation) == (0, explanation)


@pytest.mark.parametrize(
    ("expected", "reply", "explanation"),
    [
        ("[1, [2, 3]]", "[1, [2, 4]]", "[1][1]: 4 was found, but 3 is right"),
        ("[1, 2]", "[1]", "it has 1 items, but 2 are right"),
        ('{"a": {"b": true}}', '{"a": {"b": 1}}', "a.b: 1 was found, but true is right"),
        ("0.1", "0.10000000000000001", "0.10000000000000001 was found, but 0.1 is right"),
    ],
)
async def test_differences_within_lists_and_objects_have_a_path(expected: str, reply: str, explanation: str) -> None:
    assert (await score(expected, reply)).explanation == explanation


@pytest.mark.parametrize("reply", ["3", "3.0", "The answer is 3", "They are three.\n3"])
async def test_a_number_is_json_too(reply: str) -> None:
    assert (await score("3", reply)).right


@given(value=VALUES, indent=st.sampled_from([None, 1]), sort_keys=st.booleans())
async def test_any_json_equals_itself_in_another_format(value: Any, indent: int | None, sort_keys: bool) -> None:
    written = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    for reply in (written, f"Here it is:\n```json\n{written}\n```"):
        assert (await score(json.dumps(value), reply)).right


@given(st.text() | st.text(alphabet='[]{}":,.0123e-\\ntrufalsNaN `\n'))
async def test_no_reply_makes_the_scorer_fail(reply: str) -> None:
    for expected in (ANN, "[1, 2]", "3", '"x"'):
        assert (await score(expected, reply)).value in (0, 1)


@pytest.mark.timed
@pytest.mark.parametrize(
    "reply",
    [
        "[" * 1_000_000,
        '{"a":' * 200_000,
        '{"name": "' * 100_000,
        '[1, "' * 200_000,
        "[" * 50_000 + "]" * 50_000,
        '{"name": "Ann", "age": 1e999999}',
        '{"name": "Ann", "age": 1e9999999999999999999999}',
        '{"name": "Ann", "age": ' + "9" * 1_000_000 + "}",
        '{"name": "' + "x" * 1_000_000 + '", "age": 3}',
        "```\n" * 200_000,
        "answer: " * 100_000,
        "\\boxed{" * 100_000,
        "\ud800" * 1_000,
    ],
    ids=range(13),
)
@pytest.mark.parametrize("expected", [ANN, "[1]", "3"])
async def test_hostile_replies_are_wrong_within_linear_time(reply: str, expected: str) -> None:
    began = time.process_time()
    assert not (await score(expected, reply)).right
    assert time.process_time() - began < 2
