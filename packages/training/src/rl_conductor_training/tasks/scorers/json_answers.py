"""The scorer of JSON answers: values are compared, so that the order of keys and the formatting make no difference.

Replies are untrusted: JSON that is nested too deeply, has a key twice or `NaN` is no answer, and no number is too long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from rl_conductor.scoring import Sample, Score, wrong
from rl_conductor.text.truncation import truncate_middle
from rl_conductor_training.tasks.scorers.answers import extract_final_answer, extract_final_lines
from rl_conductor_training.tasks.scorers.programs import extract_last_fenced

QUOTED_CHARS = 60
MAX_STARTS = 20
"""Maximum number of brackets in a reply's prose at which its JSON may begin, so that time is linear."""


async def json_equal(sample: Sample, text: str) -> Score:
    """Compares the JSON of the reply with that of `sample.answer`, and names the first difference.

    The JSON is the whole reply, its last code block, what follows the last "answer:", the first object or list within
    its prose, whichever the answer is, or the last line.
    """
    for candidate in _candidates(text, sample.answer):
        try:
            difference = _find_difference(parse_json(candidate), parse_json(sample.answer))
        except (ValueError, RecursionError):
            continue
        answer = " ".join(candidate.split())
        return wrong(answer, difference) if difference else Score(value=1.0, answer=answer, explanation="it is equal")
    return wrong(None, "the reply has no valid JSON")


def parse_json(text: str) -> Any:
    """Parses JSON strictly, with all numbers as `Decimal`.

    Raises:
        ValueError: it is invalid, is nested too deeply, or has a key twice, `NaN` or `Infinity`.
    """
    return _decode(text)[0]


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice")
    return values


_DECODER = json.JSONDecoder(
    parse_int=Decimal, parse_float=Decimal, parse_constant=_reject_constant, object_pairs_hook=_unique_keys
)


def _decode(text: str, start: int | None = None) -> tuple[Any, int]:
    """Parses a whole text, or the value that begins at `start`; returns the value and its end. Raises `ValueError`."""
    try:
        return (_DECODER.decode(text), len(text)) if start is None else _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("a number is out of range") from error


def _candidates(text: str, expected: str) -> Iterator[str]:
    """Yields the parts of a reply that may be its JSON."""
    yield text
    yield extract_last_fenced(text)
    yield extract_final_lines(text)
    yield _find_embedded(text, expected.lstrip()[0])
    yield extract_final_answer(text)


def _find_embedded(text: str, bracket: str) -> str:
    """Returns the first JSON in a text that begins with the bracket; empty without one."""
    start = -1
    for _ in range(MAX_STARTS if bracket in "[{" else 0):
        start = text.find(bracket, start + 1)
        if start < 0:
            break
        try:
            return text[start : _decode(text, start)[1]]
        except ValueError:
            continue
    return ""


def _find_difference(actual: Any, expected: Any, path: str = "") -> str:
    """Describes the first difference between two parsed values; empty if they are equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return _find_difference_of_keys(actual, expected, path)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return f"{_at(path)}it has {len(actual)} items, but {len(expected)} are right"
        pairs = enumerate(zip(actual, expected, strict=True))
        return next(filter(None, (_find_difference(*pair, f"{path}[{index}]") for index, pair in pairs)), "")
    if type(actual) is type(expected) and actual == expected:
        return ""
    return f"{_at(path)}{_quote(actual)} was found, but {_quote(expected)} is right"


def _find_difference_of_keys(actual: dict[str, Any], expected: dict[str, Any], path: str) -> str:
    if missing := [key for key in expected if key not in actual]:
        return f"{_at(path)}the key {missing[0]!r} is missing"
    if extra := [key for key in actual if key not in expected]:
        return f"{_at(path)}there is a key {truncate_middle(extra[0], QUOTED_CHARS)!r} too many"
    paths = ((key, f"{path}.{key}" if path else key) for key in expected)
    return next(filter(None, (_find_difference(actual[key], expected[key], place) for key, place in paths)), "")


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _quote(value: Any) -> str:
    """Shows a parsed value in a message, shortened; only the kind of one that contains others."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
    return truncate_middle(text, QUOTED_CHARS)
