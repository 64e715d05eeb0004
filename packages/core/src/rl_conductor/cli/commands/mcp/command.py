"""`mcp`: a conductor as an MCP server, for editors, assistants and other agents."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from rl_conductor.cli import exit_codes, options
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.output import console
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError

Http = Annotated[bool, typer.Option("--http", help="Serve streamable HTTP at /mcp instead of stdin and stdout.")]


@options.with_run_options(without={"models"})
def mcp(
    *,
    http: Http = False,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8765,
    api_key_env: options.ApiKeyEnv = None,
    run_options: options.RunOptions,
) -> None:
    """Offer a conductor to other programs as an MCP server with the tool 'ask'.

    By default it speaks over stdin and stdout, for clients that start it themselves. Limits apply to each question;
    a client can lower them but not raise them.

    \b
    Examples:
      claude mcp add conductor -- rl-conductor mcp --pool pool.toml --usd 0.50
      rl-conductor mcp --http --port 8765 --seconds 120
    """
    _serve(run_options, (host, port, api_key_env) if http else None)


def _serve(run_options: options.RunOptions, address: tuple[str, int, str | None] | None) -> None:
    """Serves over HTTP at `address`, or else over stdin and stdout."""
    try:
        from rl_conductor.cli.commands.mcp import http as transport  # noqa: PLC0415  (an extra)
        from rl_conductor.cli.commands.mcp.server import conductor_server  # noqa: PLC0415  (an extra)
        from rl_conductor.cli.serving.http import listen, serve  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as missing:
        raise ConfigError("'mcp' needs the MCP SDK: pip install 'rl-conductor[mcp]'") from missing
    listener = listen(*address) if address is not None else None
    served, discovered = run_options.conductor()
    prepare_models(served, discovered)
    server = conductor_server(served)
    with export_telemetry():
        if listener is not None:
            console.note(console.stderr(), f"serving {listener.url}{transport.PATH}")
        else:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that waits for stdin can't be interrupted otherwise
        if listener is None:
            work = server.run_stdio_async()
        else:
            work = serve(transport.http_app(server, listener.api_key), listener)
        try:
            asyncio.run(_until_closed(served, work))
        except KeyboardInterrupt:
            raise typer.Exit(exit_codes.INTERRUPTED) from None


async def _until_closed(conductor: Conductor, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    finally:
        await conductor.aclose()
