"""Checks options of models, which pool files pass to their adapters as keyword arguments, and describes wrong ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, signature
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from rl_conductor._internal.validation import field_errors
from rl_conductor.errors import ConfigError

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
FORBIDDEN = frozenset({"api_key"})
"""Options that are never written in a file."""


def checked_options(options: Mapping[str, Any], adapter: Any) -> dict[str, Any]:
    """Returns `options` with their values converted to the types of an adapter's keyword arguments.

    Options that the adapter does not have are left as they are.

    Raises:
        ConfigError: a value has a wrong type.
    """
    try:
        checked = _options_model(adapter).model_validate(options)
    except ValidationError as error:
        raise ConfigError("; ".join(f"options.{problem}" for problem in field_errors(error))) from None
    return {**options, **{name: getattr(checked, name) for name in checked.model_fields_set}}


@cache
def _options_model(adapter: Any) -> type[BaseModel]:
    try:
        parameters = _parameters(adapter, eval_str=True)
    except NameError:  # a type that the adapter's module imports for type checkers only
        parameters = []
    fields: dict[str, Any] = {
        parameter.name: (Any if parameter.annotation is Parameter.empty else parameter.annotation, None)
        for parameter in parameters
    }
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
    return create_model("Options", __config__=config, **fields)


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
    """Returns the names of the keyword arguments of a class, with those of its bases, or of a function."""
    return [parameter.name for parameter in _parameters(adapter)]


def _parameters(adapter: Any, *, eval_str: bool = False) -> list[Parameter]:
    sources = adapter.__mro__[:-1] if isinstance(adapter, type) else [adapter]
    parameters: dict[str, Parameter] = {}
    for source in sources:
        for parameter in signature(source, eval_str=eval_str).parameters.values():
            if parameter.kind is Parameter.KEYWORD_ONLY and parameter.name not in FORBIDDEN:
                parameters.setdefault(parameter.name, parameter)
    return list(parameters.values())
