"""Marks fields of request bodies that are ignored or refused here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from pydantic import AfterValidator, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

IGNORABLE, IGNORED_TOOL, UNSUPPORTED = "ignorable", "ignored_tool", "unsupported"
"""Types of errors of marked fields; servers that are not strict remove the fields with one of the first two."""
REASON = "is not supported, because models of several vendors answer together; leave it out"


def ignorable(*neutral: object) -> AfterValidator:
    """Marks a parameter that has no effect here; only strict servers reject values other than `neutral`."""
    return unsupported(REASON, *neutral, kind=IGNORABLE)


def tool_type(
    supported: str,
    *,
    ignored: re.Pattern[str] | None = None,
    refused: Mapping[re.Pattern[str], str] = MappingProxyType({}),
) -> WrapValidator:
    """Marks the type of a tool; tools with an `ignored` type are rejected by strict servers only.

    `refused` has the sentences about types for which the supported one is to be written in another way.
    """

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            for pattern, sentence in refused.items():
                if isinstance(value, str) and pattern.fullmatch(value):
                    raise PydanticCustomError(UNSUPPORTED, "{sentence}", {"sentence": sentence}) from None
            is_ignored = ignored is not None and isinstance(value, str) and ignored.fullmatch(value)
            message = "is not a supported type of tool; write '{supported}'"
            kind = IGNORED_TOOL if is_ignored else UNSUPPORTED
            raise PydanticCustomError(kind, message, {"supported": supported}) from None

    return WrapValidator(check)


def unsupported(sentence: str, *neutral: object, kind: str = UNSUPPORTED) -> AfterValidator:
    """Rejects values other than `neutral`; the error is the field's name and `sentence`, which has the remedy.

    `kind` is the type of the error, from which its code follows.
    """

    def check(value: object) -> object:
        if value is None or value in neutral:
            return value
        raise PydanticCustomError(kind, "{sentence}", {"sentence": sentence})

    return AfterValidator(check)


def invalid_field(name: str, sentence: str) -> PydanticCustomError:
    """Creates the error about a field that a check of the whole body found; it is the field's name and `sentence`."""
    return PydanticCustomError("value_error", "{sentence}", {"param": name, "sentence": sentence})


def check_tools(tools: Sequence[str], *, choice: str | None, is_required: bool) -> None:
    """Checks the names of the tools of a request that can be called, and its choice among them.

    Raises:
        PydanticCustomError: two have one name, or it requires the call of a tool that it doesn't have, or that was
            ignored.
    """
    name, count = max(Counter(tools).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise invalid_field("tools", f"has {count} tools with the name {name!r}; give each a name of its own")
    if choice is not None and choice not in tools:
        raise invalid_field("tool_choice", f"names {choice!r}, which is not among the tools that can be called here")
    if is_required and not tools:
        raise invalid_field("tool_choice", "requires the call of a tool, but none can be called here; write 'auto'")


def only(*neutral: object) -> AfterValidator:
    """Restricts an unsupported parameter to the values at which it has no effect."""
    return unsupported(REASON, *neutral)


def replaced_by(name: str) -> AfterValidator:
    """Rejects a parameter of an older version of the API, for which there is another one."""
    return unsupported(f"is not supported; write {name}", [], "none", "auto")
