"""Tool calls for models without native ones: the model writes JSON, bare or in `<tool_call>` blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from rl_conductor.errors import BadResponseError, OutputLimitError
from rl_conductor.text.reasoning import unfinished_length
from rl_conductor.types import JsonFormat, Request, ResponseFormat, TextPart, Tool, ToolCall, last_user_index

OPENING, CLOSING = "<tool_call>", "</tool_call>"
BLOCK = re.compile(rf"{OPENING}(.*?)(?:{CLOSING}|\Z)", re.DOTALL)
WRAPPING = re.compile(rf"^(?:```(?:json)?|{OPENING})?\s*([{{\[].*[}}\]])\s*(?:```|{CLOSING})?$", re.DOTALL)


# ---------------------------------------------------------------------------------------- requests


def offered_tools(request: Request) -> tuple[Tool, ...]:
    """Returns the tools to offer to the model: all, the one that `tool_choice` names, or none."""
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if tool.name == request.tool_choice)


def response_format_with_tools(request: Request) -> ResponseFormat | None:
    """Builds the response format that enforces `tool_choice`."""
    tools, form = offered_tools(request), request.response_format
    if tools and request.tool_choice != "auto":
        return tool_call_format(tools)
    if tools and isinstance(form, JsonFormat):
        return tool_call_format(tools, alternative=form)
    return form


def add_schema_to_prompt(request: Request) -> Request:
    """Appends the JSON schema of the reply to the last user message, as vendors do on their side.

    A grammar enforces a schema but does not show it to the model; a small one then writes an endless string.
    """
    form, messages = request.response_format, list(request.messages)
    last = last_user_index(messages)
    if last is None or not isinstance(form, JsonFormat) or form.json_schema is None:
        return request
    instruction = TextPart(
        text=f"\n\nAnswer in JSON of this schema: {json.dumps(form.json_schema, ensure_ascii=False)}"
    )
    messages[last] = messages[last].model_copy(update={"content": (*messages[last].content, instruction)})
    return request.model_copy(update={"messages": tuple(messages)})


def tool_call_format(tools: Sequence[Tool], *, alternative: JsonFormat | None = None) -> JsonFormat:
    """Builds the format of a reply that calls one of `tools` or follows the `alternative` format."""
    shapes = {f"call{position}": _call_schema(tool, f"call{position}") for position, tool in enumerate(tools)}
    if alternative is not None:
        shapes["reply"] = _rebase_references(alternative.json_schema or {"type": "object"}, "reply")
    choices = [{"$ref": f"#/$defs/{name}"} for name in shapes]
    return JsonFormat(json_schema={"anyOf": choices, "$defs": shapes})


def _call_schema(tool: Tool, position: str) -> dict[str, Any]:
    arguments = _rebase_references(tool.parameters, f"{position}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _rebase_references(schema: Any, position: str) -> Any:
    """Rewrites the `$ref`s of `schema` for its new position below `$defs`."""
    if isinstance(schema, list):
        return [_rebase_references(item, position) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _rebase_references(value, position) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/$defs/{position}{reference[1:]}"
    return moved


# ----------------------------------------------------------------------------------------- replies


class ToolCallReader:
    """Reads a streamed reply: passes text on at once and buffers anything that may be a tool call."""

    def __init__(self, request: Request, *, model: str) -> None:
        """`model` is the name to use in errors."""
        self.text = ""
        self.calls: tuple[ToolCall, ...] = ()
        """The parsed tool calls; empty until `end` is called."""
        self._tools = offered_tools(request)
        self._call_required = request.requires_call
        self._max_calls = None if request.parallel_tool_calls else 1
        self._model = model
        self._pending = ""

    def add(self, piece: str) -> str:
        """Adds a piece of the reply and returns the text that is certainly not part of a tool call."""
        self._pending += piece
        size = self._certain_length()
        certain, self._pending = self._pending[:size], self._pending[size:]
        self.text += certain
        return certain

    def end(self, *, truncated: bool) -> str:
        """Parses the tool calls and returns the remaining text.

        Args:
            truncated: the reply hit its token limit.

        Raises:
            BadResponseError: a `<tool_call>` block, or a required call, does not call an offered tool.
        """
        calls, rest = parse_tool_calls(self._pending, self._tools), ""
        if not calls:
            blocks = self._blocks()
            calls = tuple(call for block in blocks for call in self._parse_block(block, truncated=truncated))
            rest = BLOCK.sub("", self._pending) if blocks else self._pending
        self.calls = calls[: self._max_calls]
        rest = "" if calls and not rest.strip() else rest
        self.text += rest
        return rest

    def _blocks(self) -> list[str]:
        if self._call_required:
            return [self._pending]
        return BLOCK.findall(self._pending) if self._tools else []

    def _parse_block(self, block: str, *, truncated: bool) -> tuple[ToolCall, ...]:
        calls = parse_tool_calls(block, self._tools)
        if not calls:
            if truncated:
                reason = "ran out of output tokens in a tool call; raise max_tokens"
                raise OutputLimitError(f"{self._model} {reason}: {block[:200]!r}", model=self._model)
            reason = "made no valid call of an offered tool"
            raise BadResponseError(f"{self._model} {reason}: {block[:200]!r}", model=self._model)
        return calls

    def _certain_length(self) -> int:
        """Returns the number of pending characters that are certainly text."""
        if not self._tools:
            return len(self._pending)
        if not self.text and may_become_tool_call(self._pending):
            return 0
        if OPENING in self._pending:
            return self._pending.index(OPENING)
        return len(self._pending) - unfinished_length(self._pending, (OPENING,))


def may_become_tool_call(text: str) -> bool:
    """Returns whether a reply that begins with `text` could still consist of tool calls only."""
    prefixes = text.lstrip()
    return prefixes[:1] in ("", "{", "[", "`") or OPENING.startswith(prefixes[: len(OPENING)])


def parse_tool_calls(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    """Parses `text` as a tool call or a list of them; returns no calls if it is anything else."""
    wrapped = WRAPPING.match(text.strip())
    try:
        value = json.loads(wrapped[1]) if wrapped else None
    except (ValueError, RecursionError):
        return ()
    calls = [_parse_call(entry, tools) for entry in (value if isinstance(value, list) else [value])]
    return tuple(call for call in calls if call) if all(calls) else ()


def _parse_call(entry: Any, tools: Sequence[Tool]) -> ToolCall | None:
    if not isinstance(entry, dict) or set(entry) not in ({"name", "arguments"}, {"name", "parameters"}):
        return None
    arguments = entry.get("arguments", entry.get("parameters"))
    if entry["name"] not in [tool.name for tool in tools] or not isinstance(arguments, dict):
        return None
    # Some chat templates accept only ids of nine letters and digits.
    return ToolCall(id=uuid4().hex[:9], name=entry["name"], arguments=json.dumps(arguments, ensure_ascii=False))
