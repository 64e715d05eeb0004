"""Tool calls that models write as JSON, bare or in `<tool_call>` blocks: pure translation, no model's own dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from rl_conductor.errors import BadResponseError
from rl_conductor.types import JsonFormat, Request, ResponseFormat, TextPart, Tool, ToolCall

OPENING, CLOSING = "<tool_call>", "</tool_call>"
BLOCK = re.compile(rf"{OPENING}(.*?)(?:{CLOSING}|\Z)", re.DOTALL)
WRAPPING = re.compile(rf"^(?:```(?:json)?|{OPENING})?\s*([{{\[].*[}}\]])\s*(?:```|{CLOSING})?$", re.DOTALL)


# ---------------------------------------------------------------------------------------- requests


def offered(request: Request) -> tuple[Tool, ...]:
    """The tools that the model is told of: all, the one that must be called, or none."""
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if tool.name == request.tool_choice)


def form_with_tools(request: Request) -> ResponseFormat | None:
    """The format to hold the reply to, which enforces the choice among the tools."""
    tools, form = offered(request), request.response_format
    if tools and request.tool_choice != "auto":
        return calling(tools)
    if tools and isinstance(form, JsonFormat):
        return calling(tools, instead=form)
    return form


def telling(request: Request) -> Request:
    """`request` with the schema of its reply in the user's last turn, as vendors tell it on their side.

    A grammar holds a model to a schema but does not tell it: a small one then goes on in a string until it is cut off.
    """
    form, turns = request.response_format, list(request.messages)
    last = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=None)
    if last is None or not isinstance(form, JsonFormat) or form.json_schema is None:
        return request
    told = TextPart(text=f"\n\nAnswer in JSON of this schema: {json.dumps(form.json_schema, ensure_ascii=False)}")
    turns[last] = turns[last].model_copy(update={"content": (*turns[last].content, told)})
    return request.model_copy(update={"messages": tuple(turns)})


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


# ----------------------------------------------------------------------------------------- replies


class Reader:
    """A reply that grows: its text is passed on at once, what may be a call is held back until the end."""

    def __init__(self, request: Request, *, model: str) -> None:
        """`model`: its name, for errors."""
        self.text = ""
        self.calls: tuple[ToolCall, ...] = ()
        """Known at the end."""
        self._tools = offered(request)
        self._must = request.tool_choice not in ("auto", "none")
        self._most = None if request.parallel_tool_calls else 1
        self._model = model
        self._held = ""

    def add(self, piece: str) -> str:
        """Take a piece of the reply; the text that is certain now."""
        self._held += piece
        size = self._certain()
        shown, self._held = self._held[:size], self._held[size:]
        self.text += shown
        return shown

    def end(self, *, cut: bool) -> str:
        """Read the calls; the text that was held back. `cut`: the reply was ended by its limit of tokens.

        Raises:
            BadResponseError: a `<tool_call>`, or a reply that must be a call, is no call of a tool that was offered.
        """
        calls, rest = read_calls(self._held, self._tools), ""
        if not calls:
            blocks = self._blocks()
            calls = tuple(call for block in blocks for call in self._read(block, cut=cut))
            rest = BLOCK.sub("", self._held) if blocks else self._held
        self.calls = calls[: self._most]
        rest = "" if calls and not rest.strip() else rest
        self.text += rest
        return rest

    def _blocks(self) -> list[str]:
        if self._must:
            return [self._held]
        return BLOCK.findall(self._held) if self._tools else []

    def _read(self, block: str, *, cut: bool) -> tuple[ToolCall, ...]:
        calls = read_calls(block, self._tools)
        if not calls:
            why = "ran out of output tokens in a tool call; raise max_tokens" if cut else "calls no tool it was offered"
            raise BadResponseError(f"{self._model} {why}: {block[:200]!r}", model=self._model, retryable=not cut)
        return calls

    def _certain(self) -> int:
        """How many of the characters held back are text for certain."""
        if not self._tools:
            return len(self._held)
        if not self.text and may_become_call(self._held):
            return 0
        if OPENING in self._held:
            return self._held.index(OPENING)
        begun = (size for size in range(1, len(OPENING)) if self._held.endswith(OPENING[:size]))
        return len(self._held) - max(begun, default=0)


def may_become_call(text: str) -> bool:
    """Whether a reply that begins with `text` could still turn out to be a call, and nothing besides."""
    begun = text.lstrip()
    return begun[:1] in ("", "{", "[", "`") or OPENING.startswith(begun[: len(OPENING)])


def read_calls(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    """The calls that `text` is, one or a list, and nothing besides; none when it is an answer."""
    wrapped = WRAPPING.match(text.strip())
    try:
        read = json.loads(wrapped[1]) if wrapped else None
    except (ValueError, RecursionError):
        return ()
    calls = [_call_in(entry, tools) for entry in (read if isinstance(read, list) else [read])]
    return tuple(call for call in calls if call) if all(calls) else ()


def _call_in(entry: Any, tools: Sequence[Tool]) -> ToolCall | None:
    if not isinstance(entry, dict) or set(entry) not in ({"name", "arguments"}, {"name", "parameters"}):
        return None
    arguments = entry.get("arguments", entry.get("parameters"))
    if entry["name"] not in [tool.name for tool in tools] or not isinstance(arguments, dict):
        return None
    # Nine letters and digits: there are templates that take no other id.
    return ToolCall(id=uuid4().hex[:9], name=entry["name"], arguments=json.dumps(arguments))
