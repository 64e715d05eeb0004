"""Hides from tenants what vendors say of the server's own access, such as a part of its key or an organisation. Pure.

Administrators see it in traces and in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rl_conductor.trace.trace import Call
from rl_conductor.types import Value

T = TypeVar("T", bound=str | Value)

ACCESS_FAULTS = (401, 403)
"""Statuses of vendors that reject the server's key."""


def without_access_errors(record: T, calls: Iterable[Call]) -> T:
    """Returns a text or a record in which the errors of calls that a vendor gave no access only name the model.

    Args:
        record: a text, a trace or a part of one.
        calls: the calls whose errors may be in it.
    """
    texts = {
        call.error: f"the server's access to {call.model} failed"
        for call in _with_nested(calls)
        if call.status in ACCESS_FAULTS and call.error
    }
    if not texts:
        return record
    if isinstance(record, Value):
        return type(record).model_validate(_replace(record.model_dump(mode="json"), texts))
    text: T = _replace(record, texts)
    return text


def _with_nested(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        if call.nested is not None:
            yield from _with_nested(call.nested.calls)
            for run in call.nested.runs:
                for round_ in run.rounds:
                    yield from _with_nested(round_.calls)


def _replace(value: Any, texts: Mapping[str, str]) -> Any:
    match value:
        case str():
            for text, replacement in texts.items():
                value = value.replace(text, replacement)
            return value
        case dict():
            return {name: _replace(item, texts) for name, item in value.items()}
        case list():
            return [_replace(item, texts) for item in value]
        case _:
            return value
