"""The ASGI application of an MCP server over streamable HTTP."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from rl_conductor.cli.serving.http import with_api_key

PATH = "/mcp"
"""The path of the MCP endpoint."""


def http_app(server: MCPServer, api_key: str | None) -> ASGIApp:
    """Returns the ASGI application, which refuses requests without `api_key`, if there is one."""
    # Without a token, web pages must not reach the server by DNS rebinding, so it demands a local name.
    security = None if api_key is None else TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(transport_security=security)
    return app if api_key is None else with_api_key(app, api_key)
