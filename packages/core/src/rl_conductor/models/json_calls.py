"""Tool calls of small models, which write them as bare JSON where the protocol wants them marked: pure translation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from rl_conductor.types import JsonFormat, Tool, ToolCall

WRAPPING = re.compile(r"^(?:```(?:json)?|<tool_call>)?\s*(\{.*\})\s*(?:```|</tool_call>)?$", re.DOTALL)


def calling(tools: Sequence[Tool], *, instead: JsonFormat | None = None) -> JsonFormat:
    """The format of a reply that calls one of `tools`, or else is of the format `instead`."""
    shapes = {f"call{place}": _call_of(tool, f"call{place}") for place, tool in enumerate(tools)}
    if instead is not None:
        shapes["reply"] = _moved(instead.json_schema or {"type": "object"}, "reply")
    choices = [{"$ref": f"#/$defs/{name}"} for name in shapes]
    return JsonFormat(json_schema={"anyOf": choices, "$defs": shapes})


def _call_of(tool: Tool, place: str) -> dict[str, Any]:
    arguments = _moved(tool.parameters, f"{place}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """`schema` as it stands at `place` of the definitions: its references are counted from the root."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/$defs/{place}{reference[1:]}"
    return moved


def may_become_call(text: str) -> bool:
    """Whether a reply that begins with `text` could still turn out to be a call."""
    return text.lstrip()[:1] in ("", "{", "`", "<")


def read_call(text: str, tools: Sequence[Tool]) -> ToolCall | None:
    """The call that `text` is, and nothing besides; `None` when it is an answer."""
    wrapped = WRAPPING.match(text.strip())
    try:
        call = json.loads(wrapped[1]) if wrapped else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return None
    if call["name"] not in [tool.name for tool in tools] or not isinstance(call["arguments"], dict):
        return None
    return ToolCall(id=f"call_{uuid4().hex[:12]}", name=call["name"], arguments=json.dumps(call["arguments"]))
