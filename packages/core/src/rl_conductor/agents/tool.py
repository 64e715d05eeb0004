"""`WorkerTool` and `ToolSource`: a tool of a worker's model, and servers that offer several of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rl_conductor.errors import ModelError
from rl_conductor.types import Tool

MAX_ARGUMENT_CHARS = 100_000
"""Maximum length of the arguments that a model may pass to a tool, as JSON text."""
MAX_RESULT_CHARS = 50_000
"""Maximum length of a tool's result; longer ones are cut in the middle."""
MAX_NAME_CHARS = 64
"""The longest tool name that all vendors accept."""
_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def vendor_safe_name(name: str) -> str:
    """Converts `name` to one that every vendor accepts for a tool or a schema."""
    return _INVALID_IN_NAMES.sub("_", name)[:MAX_NAME_CHARS]


class ToolError(Exception):
    """A tool call failed; the message is returned to the model, which may correct its arguments."""


def check_argument_length(arguments: str) -> None:
    """Raises `ToolError` if the arguments that a model wrote are longer than `MAX_ARGUMENT_CHARS`."""
    if len(arguments) > MAX_ARGUMENT_CHARS:
        raise ToolError(f"the arguments have {len(arguments):,} characters; at most {MAX_ARGUMENT_CHARS:,} allowed")


@runtime_checkable
class WorkerTool(Protocol):
    """A tool that is run on behalf of a worker."""

    @property
    def definition(self) -> Tool:
        """The name, description and argument schema, which the model reads."""

    async def run(self, arguments: str) -> str:
        """Runs the tool with JSON arguments that a model wrote. Raises `ToolError` if they are invalid."""


class ToolSourceError(ModelError):
    """A server of tools can't be used, so the worker that depends on it can't do its step."""


@runtime_checkable
class ToolSource(Protocol):
    """A server that offers tools, which are listed before each reply of a worker."""

    @property
    def title(self) -> str:
        """The kind and name of the server, such as `MCP server time`."""

    @property
    def selected_names(self) -> Sequence[str]:
        """The names of the tools that the user selected; empty if all of them may be called."""

    async def list_tools(self) -> Sequence[WorkerTool]:
        """Returns the tools, connecting if necessary. Raises `ToolSourceError` if the server can't be used."""

    async def aclose(self) -> None:
        """Closes the connection; a later use opens another one."""
