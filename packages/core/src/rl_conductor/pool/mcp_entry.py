"""`MCPEntry`: an MCP server in a pool file, with tools for a worker."""

from __future__ import annotations

from pydantic import Field

from rl_conductor.agents.mcp_server import MCPServer
from rl_conductor.pool.model_entry import Entry, read_secret_headers, read_variable


class MCPEntry(Entry):
    """An MCP server in a pool file: `[workers.NAME.mcp.SERVER]`. Secrets are read from the environment."""

    command: tuple[str, ...] = ()
    """The program and its arguments."""
    env: tuple[str, ...] = ()
    """The environment variables that the program gets, besides `PATH`, `HOME` and a few like them."""
    url: str = ""
    """The address of a server that speaks streamable HTTP."""
    api_key_env: str = ""
    """The environment variable with the bearer token for the address."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """HTTP headers, and for each the environment variable with its value."""
    only: tuple[str, ...] | None = None
    """The tools that the model may call; by default all."""
    prefix: str = ""
    """Put before the tools' names."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one use of a tool."""

    def build(self, name: str) -> MCPServer:
        """Creates the server, which is not started.

        Raises:
            ConfigError: the entry is invalid, or a variable that it names is not set.
        """
        reader = f"MCP server {name!r}"
        headers = read_secret_headers(self.headers_env, reader)
        if self.api_key_env:
            headers["Authorization"] = f"Bearer {read_variable(self.api_key_env, reader).strip()}"
        return MCPServer(
            self.command,
            url=self.url,
            name=name,
            env={variable: read_variable(variable, reader) for variable in self.env},
            headers=headers,
            only=self.only,
            prefix=self.prefix,
            timeout=self.timeout,
        )
