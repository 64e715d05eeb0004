"""`a2a`: a conductor as an A2A agent, for agents of other frameworks."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_conductor.cli import options
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.serving.until_stopped import serve_until_stopped
from rl_conductor.errors import ConfigError

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
    try:
        from rl_conductor.cli.commands.a2a.server import AgentInfo, agent_app  # noqa: PLC0415  (an extra)
        from rl_conductor.cli.serving.http import listen, serve  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as missing:
        raise ConfigError("'a2a' needs the A2A SDK: pip install 'rl-conductor[a2a]'") from missing
    listener = listen(host, port, api_key_env)
    info = AgentInfo(name, description, (url or listener.url).rstrip("/"))
    conductor, discovered = run_options.conductor()
    prepare_models(conductor, discovered)
    serve_until_stopped(
        lambda: serve(agent_app(conductor, info, listener.api_key), listener), conductor, url=listener.url
    )
