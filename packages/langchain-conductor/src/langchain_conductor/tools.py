"""Converts LangChain's tools to the core's, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from rl_conductor.errors import ConfigError
from rl_conductor.integration import redacted_repr
from rl_conductor.types import Tool

FUNCTION_TYPES = ("function", "custom", "object")
"""The `type` of tools that a program runs: OpenAI's, Anthropic's, and that of a JSON schema."""

FREEFORM_ARGUMENT = "__arg1"
"""LangChain's name of the argument of tools that take a text."""

AnyTool = Mapping[str, Any] | type | Callable[..., Any] | BaseTool
"""Tools in any form that LangChain accepts."""


def core_tool(tool: AnyTool, *, strict: bool | None = None) -> Tool:
    """Converts a tool; `strict` requests arguments that match its schema exactly, and closes the schema.

    Raises:
        ConfigError: `tool` is not a tool, only a vendor's own server can run it, or only OpenAI can follow its grammar.
    """
    if (freeform := _freeform_fields(tool)) is not None:
        return _freeform_tool(freeform)
    try:
        converted = {} if _is_server_tool(tool) else convert_to_openai_tool(tool, strict=strict)
    except ValueError as error:
        accepted = "a function, a LangChain tool, a pydantic class or a JSON schema with a title"
        raise ConfigError(f"{redacted_repr(tool)} is not a tool; write {accepted}") from error
    function = converted.get("function")
    if function is None:
        raise ConfigError(
            f"the tool {redacted_repr(tool)} runs only on its vendor's server, not with every worker; write a function "
            "instead"
        )
    fields = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
    return Tool.model_validate({**fields, "strict": function.get("strict")})


def _freeform_fields(tool: AnyTool) -> Mapping[str, Any] | None:
    """Returns the fields of a `custom` tool of OpenAI, which takes one text; `None` for other tools.

    Anthropic's tools of the type `custom` have a schema.
    """
    if isinstance(tool, BaseTool):
        metadata = tool.metadata or {}
        fields = {"name": tool.name, "description": tool.description, "format": metadata.get("format")}
        return fields if metadata.get("type") == "custom_tool" else None
    if isinstance(tool, dict) and tool.get("type") == "custom" and "input_schema" not in tool:
        return cast("Mapping[str, Any]", tool.get("custom", tool))
    return None


def _freeform_tool(fields: Mapping[str, Any]) -> Tool:
    """Creates a function of one text, named as in LangChain's calls of `custom` tools."""
    name, form = fields.get("name"), fields.get("format") or {}
    if form.get("type", "text") != "text":
        raise ConfigError(
            f"the tool {name!r} has a grammar, which only OpenAI's models follow; leave out its format=..., "
            "and describe the text in its description"
        )
    argument = {"type": "string", "description": "The whole input, as plain text."}
    schema = {"type": "object", "properties": {FREEFORM_ARGUMENT: argument}, "required": [FREEFORM_ARGUMENT]}
    return Tool.model_validate({"name": name, "description": fields.get("description") or "", "parameters": schema})


def _is_server_tool(tool: AnyTool) -> bool:
    """Whether its vendor runs the tool, such as `web_search_20250305`, which LangChain would take for a function."""
    return isinstance(tool, dict) and tool.get("type", "function") not in FUNCTION_TYPES


def lc_tool(tool: Tool) -> dict[str, Any]:
    """Converts a tool to the form that every `bind_tools` accepts."""
    return {"type": "function", "function": tool.model_dump(exclude_none=True)}
