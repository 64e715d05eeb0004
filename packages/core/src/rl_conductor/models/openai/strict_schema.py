"""Closes a JSON schema for OpenAI's strict mode, in which replies are certain to match it. Pure."""

from __future__ import annotations

from typing import Any

KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs"),
    *("title", "description"),
}
"""The keywords that strict mode supports on OpenAI and Azure alike, for every model."""


class _UnsupportedError(Exception):
    """A part of the schema has no equivalent in strict mode."""


def close_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a schema for strict mode that allows nothing that `schema` doesn't; `None` if there is none.

    Strict mode demands that all properties are required and others forbidden (OpenAI, "Structured outputs", supported
    schemas). A property that is optional here may be `null`, or the schema can't be closed.
    """
    try:
        closed = _close(schema)
    except (_UnsupportedError, AttributeError, TypeError, RecursionError):  # a caller's schema may be malformed
        return None
    return closed if closed.get("type") == "object" else None


def _close(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):  # such as `true`, which allows any value
        raise _UnsupportedError
    schema = _without_null_default(_union_by_tag(schema))
    is_reference = "$ref" in schema and len(schema) == 1
    has_type = "$ref" not in schema and not schema.keys().isdisjoint(("type", "anyOf"))
    if not (is_reference or has_type) or not schema.keys() <= KEYWORDS:
        raise _UnsupportedError
    closed = {name: _close_keyword(name, value) for name, value in schema.items()}
    types = _types(schema)
    if "object" in types:
        closed |= _closed_object(schema)
    if "array" in types and "items" not in schema:
        raise _UnsupportedError
    return closed


def _close_keyword(name: str, value: Any) -> Any:
    match name:
        case "items":
            return _close(value)
        case "anyOf":
            return [_close(option) for option in value]
        case "properties" | "$defs":
            return {key: _close(part) for key, part in value.items()}
        case _:
            return value


def _closed_object(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    is_free = not properties and "additionalProperties" not in schema
    if is_free or schema.get("additionalProperties", False) is not False:
        raise _UnsupportedError
    if any(name not in required and not _is_nullable(part) for name, part in properties.items()):
        raise _UnsupportedError
    return {"required": list(properties), "additionalProperties": False}


def _is_nullable(schema: Any) -> bool:
    return "null" in _types(schema) or any("null" in _types(option) for option in schema.get("anyOf", ()))


def _types(schema: Any) -> list[str]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


def _without_null_default(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes a default of `null`, which strict mode refuses: the model has to write it."""
    if schema.get("default", ...) is not None:
        return schema
    return {name: value for name, value in schema.items() if name != "default"}


def _union_by_tag(schema: dict[str, Any]) -> dict[str, Any]:
    """Rewrites pydantic's tagged unions as `anyOf`, which allows the same, as no value has two tags."""
    if not {"oneOf", "discriminator"} <= schema.keys():
        return schema
    rest = {name: value for name, value in schema.items() if name not in ("oneOf", "discriminator")}
    return {**rest, "anyOf": schema["oneOf"]}
