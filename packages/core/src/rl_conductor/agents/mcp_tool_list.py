"""Removes invalid tools from an MCP server's lists, because the SDK refuses a list as a whole for one of them.

It reads the messages between the transport and the SDK's session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, SchemaError
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from rl_conductor.agents.tool import vendor_safe_name

MAX_SCHEMA_CHARS = 20_000
"""Maximum length of a tool's argument schema, as JSON."""
DRAFTS = (Draft202012Validator, Draft7Validator, Draft4Validator)
"""The versions of JSON Schema that servers write, most of them without saying which."""
MAX_REASON_CHARS = 200
"""Maximum length of the reason why a tool is left out."""


class ToolListFilter:
    """Removes the tools that no model could be offered, and remembers the reasons."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """Why tools were left out of the server's lists, by their names."""

    @asynccontextmanager
    async def filtered(self, transport: Transport) -> AsyncIterator[tuple[Any, Any]]:
        """Opens a transport and passes each message that it receives through `filter`."""
        async with transport as (read, write):
            yield _FilteredStream(read, self), write

    def filter(self, message: object) -> None:
        """Removes invalid tools from a message, if it is a list of tools."""
        response = message.message if isinstance(message, SessionMessage) else None
        tools = response.result.get("tools") if isinstance(response, JSONRPCResponse) else None
        if not isinstance(response, JSONRPCResponse) or not isinstance(tools, list):
            return
        reasons = [invalid_reason(tool) for tool in tools]
        response.result["tools"] = [tool for tool, reason in zip(tools, reasons, strict=True) if not reason]
        names = [str(tool.get("name") or "") if isinstance(tool, dict) else "" for tool in tools]
        current = dict(zip(names, reasons, strict=True))
        self.reasons = {name: reason for name, reason in (self.reasons | current).items() if reason}


def invalid_reason(tool: object) -> str:
    """Returns why a tool in a list can't be offered to a model; empty if it can."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(name, str) or not vendor_safe_name(name):
        return "it has no name"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return "its inputSchema is missing"
    if schema.get("type") != "object":
        return f"the type of its inputSchema is {schema.get('type')!r}, not 'object'"[:MAX_REASON_CHARS]
    if (size := len(json.dumps(schema))) > MAX_SCHEMA_CHARS:
        return f"its inputSchema has {size:,} characters; at most {MAX_SCHEMA_CHARS:,} are allowed"
    errors = [_schema_error(schema, draft) for draft in DRAFTS]
    return errors[0] if all(errors) else ""


def _schema_error(schema: dict[str, Any], draft: Any) -> str:
    try:
        draft.check_schema(schema)
    except SchemaError as error:
        return f"its inputSchema is invalid: {error.message} (at {error.json_path})"[:MAX_REASON_CHARS]
    except RecursionError:
        return "its inputSchema is nested too deeply"
    return ""


class _FilteredStream:
    """The messages of a transport, filtered as they are read."""

    def __init__(self, inner: Any, tool_list_filter: ToolListFilter) -> None:
        self._inner = inner
        self._filter = tool_list_filter

    @property
    def last_context(self) -> Any:
        """The context of the sender, which the SDK reads if the transport has it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        message = await self._inner.receive()
        self._filter.filter(message)
        return message

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await anext(self._inner)
        self._filter.filter(message)
        return message

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        suppresses: bool | None = await self._inner.__aexit__(*error)
        return suppresses
