"""Hides vendors' errors about the server's own access from tenants, such as a part of its key. Pure.

Administrators see it in traces and in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rl_conductor.models.redaction import REDACTED
from rl_conductor.trace.trace import Call
from rl_conductor.types import Value

T = TypeVar("T", bound=str | Value)

ACCESS_FAULTS = (401, 403)
"""Statuses of vendors that reject the server's key."""
KEY_LIKE = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        (?i:bearer\ +|x-api-key:\ *)(?:(?=\S*\d)[\w.~+/*=-]{8,}|[\w.~+/*=-]{20,})
        | sk-(?:(?=[\w.-]*(?:\d{3}|\*|\.\.))[\w.*-]{8,}|[\w.*-]{20,})
        | (?:rlc_|gsk_|hf_|ghp_|fw_|nvapi-|xai-|AIza|AKIA)(?=[\w-]*\d)[\w*-]{16,}
    )""",
    re.VERBOSE,
)
"""Bearer tokens, and keys of vendors, of AWS and of this server, as a whole or in part; names of models, such as
`sk-mixtral-8x7b`, are none."""
ACCOUNT_LIKE = re.compile(r"\b(?:org|proj)[-_][\w-]+")
"""Organisations and projects of OpenAI, which its errors about limits name."""


def without_access_errors(record: T, calls: Iterable[Call]) -> T:
    """Returns a text or a record in which the errors of calls tell nothing of the server's access.

    Those of a vendor that gave no access only name the model; in others, keys and accounts are redacted.

    Args:
        record: a text, a trace or a part of one.
        calls: the calls whose errors may be in it.
    """
    texts = {call.error: _tenant_text(call, call.error) for call in _with_nested(calls) if call.error}
    if all(text == masked for text, masked in texts.items()):
        return record
    if isinstance(record, Value):
        return type(record).model_validate(_replace(record.model_dump(mode="json"), texts))
    text: T = _replace(record, texts)
    return text


def _tenant_text(call: Call, error: str) -> str:
    """Returns the error of a call as tenants may see it."""
    if call.status in ACCESS_FAULTS:
        return f"the server's access to {call.model} failed"
    return ACCOUNT_LIKE.sub(REDACTED, KEY_LIKE.sub(REDACTED, error))


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
