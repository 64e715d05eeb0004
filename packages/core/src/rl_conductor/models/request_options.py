"""Parses the options of a request that other frameworks write in the vendors' forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from rl_conductor.errors import ConfigError
from rl_conductor.types import JsonFormat, Tool


def parse_tool_choice(choice: str | bool | Mapping[str, Any] | None, tools: Sequence[Tool]) -> str:
    """Converts a tool choice in any vendor's form to `auto`, `none`, `required` or a tool's name.

    Raises:
        ConfigError: no tool has that name.
    """
    if isinstance(choice, Mapping):
        choice = choice.get("function", choice).get("name") or choice.get("type")
    if choice in (None, False, "auto"):
        return "auto"
    if choice in (True, "any", "required"):
        return "required"
    names = [tool.name for tool in tools]
    if choice not in ("none", *names):
        raise ConfigError(f"tool_choice is {choice!r}; write 'auto', 'required', 'none' or one of {', '.join(names)}")
    return str(choice)


def allows_parallel_calls(choice: object) -> bool:
    """Whether a tool choice allows several calls in one reply, which one in Anthropic's form may forbid."""
    return not (isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use"))


def parse_response_format(value: object) -> JsonFormat | None:
    """Converts a pydantic class, a JSON schema or OpenAI's form; `None` for text.

    Raises:
        ConfigError: it is in none of these forms.
    """
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return JsonFormat()
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema, **details}}:
            name = str(details.get("name") or "reply")
            return JsonFormat(name=name, json_schema=dict(schema), strict=details.get("strict"))
        case Mapping() if value.get("type", "object") == "object":
            return JsonFormat(json_schema=dict(value))
        case type() if issubclass(value, BaseModel):
            return JsonFormat(name=value.__name__, json_schema=value.model_json_schema())
    raise ConfigError(
        f"response_format is {value!r}; write a pydantic class, a JSON schema, {{'type': 'json_object'}} or "
        "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': ...}}"
    )
