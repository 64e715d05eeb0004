"""`a2a`: a conductor as an A2A agent, for agents of other frameworks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from rl_conductor.cli import exit_codes, options
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.output import console
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError

if TYPE_CHECKING:
    from rl_conductor.cli.commands.a2a.server import AgentInfo
    from rl_conductor.cli.serving.http import ServerSocket

AGENT = "Agent"

PublicUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The address in the agent's card, if clients reach it through a proxy.",
        rich_help_panel=options.HTTP,
        show_default=False,
    ),
]
Name = Annotated[str, typer.Option("--name", metavar="TEXT", help="The agent's name.", rich_help_panel=AGENT)]
Description = Annotated[
    str,
    typer.Option(
        "--description",
        metavar="TEXT",
        help="What the agent is good at, which other agents read.",
        rich_help_panel=AGENT,
    ),
]


@options.with_run_options(without={"models"})
def a2a(
    *,
    name: Name = "conductor",
    description: Description = "Answers questions with a team of language models.",
    host: options.Host = "127.0.0.1",
    port: options.Port = 8766,
    api_key_env: options.ApiKeyEnv = None,
    url: PublicUrl = None,
    run_options: options.RunOptions,
) -> None:
    """Offer a conductor to other agents as an A2A agent.

    Limits apply to each task; a client can lower them but not raise them.

    \b
    Examples:
      rl-conductor a2a --pool pool.toml --usd 0.50
      rl-conductor a2a --host 0.0.0.0 --api-key-env A2A_TOKEN --url https://agents.example.com/team
    """
    _run(run_options, (host, port, api_key_env), (name, description, url))


def _run(
    run_options: options.RunOptions, address: tuple[str, int, str | None], card: tuple[str, str, str | None]
) -> None:
    """Serves at `address` (host, port, variable of the key) under `card` (name, description, public URL)."""
    try:
        from rl_conductor.cli.commands.a2a.server import AgentInfo  # noqa: PLC0415  (an extra)
        from rl_conductor.cli.serving.http import listen  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as missing:
        raise ConfigError("'a2a' needs the A2A SDK: pip install 'rl-conductor[a2a]'") from missing
    listener = listen(*address)
    name, description, url = card
    info = AgentInfo(name, description, (url or listener.url).rstrip("/"))
    served, discovered = run_options.conductor()
    prepare_models(served, discovered)
    with export_telemetry():
        console.note(console.stderr(), f"serving {listener.url}")
        try:
            asyncio.run(_serve(served, info, listener))
        except KeyboardInterrupt:
            raise typer.Exit(exit_codes.INTERRUPTED) from None


async def _serve(conductor: Conductor, info: AgentInfo, listener: ServerSocket) -> None:
    from rl_conductor.cli.commands.a2a.server import agent_app  # noqa: PLC0415  (an extra)
    from rl_conductor.cli.serving.http import serve  # noqa: PLC0415  (an extra)

    try:
        await serve(agent_app(conductor, info, listener.api_key), listener)
    finally:
        await conductor.aclose()
