"""`MCPServer`: the tools of a server of the Model Context Protocol, for a worker's model.

The tools are listed before each reply of the worker. Names, descriptions and results come from the server, so they are
untrusted: their size is bounded, the planner is not shown them, and no tool can take the name of another one.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from rl_conductor._internal.blocking import in_thread
from rl_conductor._internal.per_loop import PerLoop
from rl_conductor._internal.version import is_importable
from rl_conductor.agents.tool import (
    MAX_NAME_CHARS,
    MAX_RESULT_CHARS,
    ToolError,
    ToolSourceError,
    check_argument_length,
    vendor_safe_name,
)
from rl_conductor.errors import ConfigError
from rl_conductor.models.http.request_log import redact_in_logs
from rl_conductor.models.redaction import redact_secrets
from rl_conductor.models.urls import is_http_url, redact_url, url_secrets
from rl_conductor.models.variable_secrets import variable_secrets
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Tool

if TYPE_CHECKING:
    from rl_conductor.agents.mcp_connection import MCPConnection

MAX_TOOLS = 128
"""Maximum number of tools of one server; vendors accept no more in one request."""
MAX_DESCRIPTION_CHARS = 4_000
"""Maximum length of a tool's description; longer ones are cut in the middle."""

log = logging.getLogger("rl_conductor.mcp")

CONNECTION_MODULE = "rl_conductor.agents.mcp_connection"
"""Imports the SDK."""


class MCPServer:
    """The tools of one MCP server, started as a command or reached by its URL (streamable HTTP).

    It is connected on first use, once per event loop, and closed with the model that has it.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        url: str = "",
        name: str = "",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        only: Collection[str] | None = None,
        prefix: str = "",
        timeout: float = 60.0,
    ) -> None:
        """Describes a server; nothing is started.

        Args:
            command: the program and its arguments, for a server that speaks over its stdin and stdout.
            url: the address of a server that speaks streamable HTTP.
            name: the server's name in errors and in the worker's description; by default its program or host.
            env: environment variables of the program, besides `PATH`, `HOME` and a few like them. Those that look like
                secrets, by their name or value, are removed from results.
            headers: HTTP headers, such as `{"Authorization": f"Bearer {token}"}`.
            only: the names of the tools that the model may call; by default all.
            prefix: put before the tools' names, for servers with tools of the same name.
            timeout: seconds for one use of a tool.

        Raises:
            ConfigError: an argument is invalid, or the MCP SDK is not installed.
        """
        if isinstance(command, str) or bool(command) == bool(url):
            raise ConfigError("MCPServer needs a command, such as ['uvx', 'mcp-server-time'], or url=..., and not both")
        if url and not is_http_url(url):
            raise ConfigError(
                f"MCPServer: url={redact_url(url)!r} is not an address that begins with http:// or https://"
            )
        if (env and url) or (headers and command):
            raise ConfigError("MCPServer: env belongs to a command, and headers to a url; leave out the other one")
        if only is not None and (isinstance(only, str) or not only):
            raise ConfigError(f"MCPServer: only={only!r} is not a list of names of tools; write one, or leave it out")
        if timeout <= 0:
            raise ConfigError(f"MCPServer: timeout={timeout:g} is not above 0; write the seconds that one use may take")
        if not is_importable("mcp"):
            raise ConfigError("MCP servers need the MCP SDK: pip install 'rl-conductor[mcp]'")
        self.name = name or (PurePath(command[0]).name if command else _public_url(url))
        self.command, self.url, self.timeout, self.prefix = tuple(command), url, timeout, prefix
        self.only = None if only is None else frozenset(only)
        self.env = {key: SecretStr(value) for key, value in (env or {}).items()}
        self.headers = {key: SecretStr(value) for key, value in (headers or {}).items()}
        self._connections = PerLoop(partial(_connect, self))
        self._warned: set[str] = set()  # names of tools about which a warning was logged
        redact_in_logs(url)

    @property
    def title(self) -> str:
        """The kind and name of the server."""
        return f"MCP server {self.name}"

    @property
    def selected_names(self) -> Sequence[str]:
        """The names of the tools that `only` selects, as a model is shown them."""
        return sorted(vendor_safe_name(self.prefix + name) for name in self.only or ())

    async def list_tools(self) -> tuple[MCPTool, ...]:
        """Connects if necessary and returns the server's tools.

        Raises:
            ToolSourceError: the server can't be reached or does not offer the tools that `only` names.
        """
        if CONNECTION_MODULE not in sys.modules:
            await in_thread(partial(import_module, CONNECTION_MODULE))  # the SDK takes half a second
        connection = self._connections.get()
        was_open = connection.is_open
        try:
            listed = await connection.list_tools(MAX_TOOLS + 1)
        except ToolSourceError:
            if not was_open:
                raise
            listed = await connection.list_tools(MAX_TOOLS + 1)  # it was lost since the last use, and is opened again
        return self._select(listed, connection)

    def _select(self, listed: Sequence[Tool], connection: MCPConnection) -> tuple[MCPTool, ...]:
        self._report(connection.left_out, has_others=bool(listed))
        selected = [tool for tool in listed if self.only is None or tool.name in self.only]
        missing = sorted((self.only or frozenset()) - {tool.name for tool in listed})
        if missing:
            raise self.error(f"it has no tool {', '.join(map(repr, missing))}, which only=... names")
        if len(selected) > MAX_TOOLS:
            raise self.error(f"it has more than {MAX_TOOLS} tools; name those that are needed with only=[...]")
        return tuple(MCPTool(self, connection, tool) for tool in selected)

    def _report(self, left_out: Mapping[str, str], *, has_others: bool) -> None:
        """Warns once of each selected tool that can't be offered; raises `ToolSourceError` if `only` names it."""
        for name, reason in left_out.items():
            if self.only is not None and name not in self.only:
                continue
            message = f"tool {name[:MAX_NAME_CHARS]!r} can't be offered: {reason}"
            if self.only is not None or not has_others:
                raise self.error(message)
            if name not in self._warned:
                self._warned.add(name)
                log.warning("%s: %s; its other tools are used", self.title, self.redact(message))

    async def aclose(self) -> None:
        """Closes the connection of the running event loop; a later use opens another one."""
        connection = self._connections.drop()
        if connection is not None:
            await connection.aclose()

    def error(self, reason: str) -> ToolSourceError:
        """Returns the error for a server that can't be used, without its secrets."""
        return ToolSourceError(f"{self.title}: {self.redact(reason)}", model=self.title)

    def redact(self, text: str) -> str:
        """Removes the values of headers, and the secrets in environment variables and the URL, from a server's text."""
        headers = (part for value in self.headers.values() for part in value.get_secret_value().split())
        env = (part for name, value in self.env.items() for part in variable_secrets(name, value.get_secret_value()))
        return redact_secrets(text, [*url_secrets(self.url), *headers, *env])


class MCPTool:
    """A tool of an MCP server, with the name, description and schema that a model is shown."""

    def __init__(self, server: MCPServer, connection: MCPConnection, tool: Tool) -> None:
        """Bounds the server's description of a tool."""
        self._server = server
        self._connection = connection
        self._name = tool.name
        name = vendor_safe_name(server.prefix + tool.name)
        description = truncate_middle(tool.description, MAX_DESCRIPTION_CHARS)
        self.definition = tool.model_copy(update={"name": name, "description": description})

    async def run(self, arguments: str) -> str:
        """Calls the tool and returns the text of its result.

        Raises:
            ToolError: the arguments are not a JSON object, the tool failed, or it took too long.
            ToolSourceError: the connection to the server is lost.
        """
        parsed = _parse_arguments(arguments)
        text, is_error = await self._connection.call(self._name, parsed)
        text = self._server.redact(truncate_middle(text, MAX_RESULT_CHARS))
        if is_error:
            raise ToolError(text)
        return text


def _public_url(url: str) -> str:
    """Returns the address without user, password, query and fragment, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def _connect(server: MCPServer) -> MCPConnection:
    connection: MCPConnection = sys.modules[CONNECTION_MODULE].MCPConnection(server)
    return connection


def _parse_arguments(arguments: str) -> dict[str, Any]:
    check_argument_length(arguments)
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolError(f"invalid arguments: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ToolError("invalid arguments: not a JSON object")
    return parsed
