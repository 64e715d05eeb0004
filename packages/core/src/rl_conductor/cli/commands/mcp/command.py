"""`mcp`: a conductor as an MCP server, for editors, assistants and other agents."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from rl_conductor.cli import options
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.serving.until_stopped import serve_until_stopped
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
    """Offer a conductor as an MCP server with the tool 'ask'.

    By default it speaks over stdin and stdout, for clients that start it themselves. Limits apply to each question;
    a client can lower them but not raise them.

    \b
    Examples:
      claude mcp add conductor -- rl-conductor mcp --pool pool.toml --usd 0.50
      rl-conductor mcp --http --port 8765 --seconds 120
    """
    try:
        from rl_conductor.cli.commands.mcp.server import PATH, conductor_server, http_app  # noqa: PLC0415  (an extra)
        from rl_conductor.cli.serving.http import listen, serve  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as missing:
        raise ConfigError("'mcp' needs the MCP SDK: pip install 'rl-conductor[mcp]'") from missing
    listener = listen(host, port, api_key_env) if http else None
    conductor, discovered = run_options.conductor()
    prepare_models(conductor, discovered)
    server = conductor_server(conductor)
    if listener is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that waits for stdin can't be interrupted otherwise
        serve_until_stopped(server.run_stdio_async, conductor)
    else:
        app = http_app(server, listener.api_key)
        serve_until_stopped(lambda: serve(app, listener), conductor, url=f"{listener.url}{PATH}")
