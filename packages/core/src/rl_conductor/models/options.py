"""Describes wrong options of models, which pool files pass to their adapters as keyword arguments."""

from __future__ import annotations

import re
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
FORBIDDEN = frozenset({"api_key"})
"""Options that are never written in a file."""


def describe_option_error(error: TypeError, adapter: Any) -> str:
    """Says which option an adapter does not have, and which one resembles it or else all that it has."""
    unexpected = UNEXPECTED.search(str(error))
    if unexpected is None:
        return str(error)
    name, names = unexpected[1], option_names(adapter)
    similar = get_close_matches(name, names, 1)
    if similar:
        return f"there is no option {name!r}; did you mean {similar[0]!r}?"
    return f"there is no option {name!r}" + (f"; write one of {', '.join(names)}" if names else "")


def option_names(adapter: Any) -> list[str]:
    """Returns the keyword arguments of a class, with those of its bases, or of a function."""
    sources = adapter.__mro__[:-1] if isinstance(adapter, type) else [adapter]
    names = (
        parameter.name
        for source in sources
        for parameter in signature(source).parameters.values()
        if parameter.kind is Parameter.KEYWORD_ONLY and parameter.name not in FORBIDDEN
    )
    return list(dict.fromkeys(names))
