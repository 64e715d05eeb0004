"""Options shared by several commands, and the conductor, limits and policy built from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rl_conductor._internal.formatting import parse_seconds
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import POOL_VARIABLE, discover, from_models
from rl_conductor.config.learned_folder import load_folder
from rl_conductor.config.profiles import ProfileName
from rl_conductor.errors import ConfigError, PolicyError
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

WORKERS = "Workers"
LIMITS = "Limits"
OUTPUT = "Output"
HTTP = "HTTP"

LIMIT_OPTIONS = ("usd", "tokens", "seconds", "rounds", "steps")
"""Fields of `Limits` that are options of commands."""


def usd(text: str | Decimal) -> Decimal:
    """Parses an amount of US dollars."""
    try:
        amount = Decimal(str(text).removeprefix("$"))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0:
        raise typer.BadParameter(f"{text!r} is not an amount of US dollars, such as 0.05")
    return amount


def _seconds(text: str) -> float:
    amount = parse_seconds(text)
    if not amount:
        raise typer.BadParameter(f"{text!r} is not a number of seconds, such as 60")
    return amount


def _worker_names(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the names of workers from the pool file; discovery would be too slow here."""
    file = context.params.get("pool") or os.environ.get(POOL_VARIABLE)
    try:
        return [name for name in read_pool_file(file).workers if name.startswith(incomplete)] if file else []
    except ConfigError:
        return []


PoolOption = Annotated[
    Path | None,
    typer.Option("--pool", metavar="FILE", help="A pool file; disables discovery.", rich_help_panel=WORKERS),
]
ConductorFolder = Annotated[
    Path | None,
    typer.Option(
        "--conductor",
        metavar="FOLDER",
        help="A learned conductor, from 'rl-conductor learn'.",
        rich_help_panel=WORKERS,
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Use this model, such as openai:gpt-6-sol; may be repeated; the first one also plans.",
        rich_help_panel=WORKERS,
        show_default=False,
    ),
]
Workers = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        "-w",
        metavar="NAME",
        help="Use only this worker; may be repeated. 'tag:NAME' and 'region:NAME' stand for groups.",
        rich_help_panel=WORKERS,
        show_default=False,
        autocompletion=_worker_names,
    ),
]
Denied = Annotated[
    list[str] | None,
    typer.Option(
        "--deny",
        metavar="NAME",
        help="Never use this worker; may be repeated.",
        rich_help_panel=WORKERS,
        show_default=False,
        autocompletion=_worker_names,
    ),
]
ProfileOption = Annotated[
    ProfileName | None,
    typer.Option(
        "--profile",
        help="mini: 2 steps, cheap workers first, 60 seconds. ultra: 5 steps, 2 rounds.",
        rich_help_panel=LIMITS,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds", min=1, metavar="N", help="Maximum plans, run one after the other.", rich_help_panel=LIMITS
    ),
]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, metavar="N", help="Maximum steps of a plan.", rich_help_panel=LIMITS)
]
Usd = Annotated[
    Decimal | None,
    typer.Option(
        "--usd",
        parser=usd,
        metavar="USD",
        help="Maximum US dollars, planning included. A call that could exceed it is not made.",
        rich_help_panel=LIMITS,
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        parser=_seconds,
        metavar="SECONDS",
        help="Time limit of the run, in seconds.",
        rich_help_panel=LIMITS,
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", min=0, metavar="N", help="Maximum input and output tokens.", rich_help_panel=LIMITS),
]
Question = Annotated[
    str | None,
    typer.Argument(metavar="QUESTION", help="The question; read from stdin if omitted.", show_default=False),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="An image, PDF or text file to attach to the question; '-' is stdin; may be repeated.",
        show_default=False,
    ),
]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="Instructions for the answer, as a system message.")
]
Schema = Annotated[
    Path | None, typer.Option("--schema", metavar="FILE", help="A JSON schema; the answer is JSON that matches it.")
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON: text, usage, and all of the trace.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but the answer and errors.", rich_help_panel=OUTPUT)
]
ShowTrace = Annotated[
    bool, typer.Option("--show-trace", help="Print a full report of the run to stderr.", rich_help_panel=OUTPUT)
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Save the trace, for 'trace show'.", rich_help_panel=OUTPUT),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.", rich_help_panel=HTTP)]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port.", rich_help_panel=HTTP)]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="VARIABLE",
        help="The environment variable with the bearer token that clients must send.",
        rich_help_panel=HTTP,
        show_default=False,
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """The options that choose workers and limits; `None` keeps the default."""

    pool: PoolOption = None
    conductor_folder: ConductorFolder = None
    models: Models = None
    workers: Workers = None
    denied: Denied = None
    profile: ProfileOption = None
    rounds: Rounds = None
    steps: Steps = None
    usd: Usd = None
    seconds: Seconds = None
    tokens: Tokens = None

    def conductor(self) -> tuple[Conductor, DiscoveredPool]:
        """Builds the conductor, and returns it with the discovered pool."""
        discovered = self._discover()
        config = discovered.with_profile(self.profile)
        config = config.replaced(policy=self.policy(discovered), limits=self._limits(config.limits))
        return Conductor.from_config(config), discovered

    def _discover(self) -> DiscoveredPool:
        sources = {"--pool": self.pool, "--conductor": self.conductor_folder, "--model": self.models}
        used_options = [option for option, value in sources.items() if value]
        if len(used_options) > 1:
            raise ConfigError(f"{' and '.join(used_options)} both name the workers; pass one of them")
        if self.models:
            return from_models(self.models)
        return load_folder(self.conductor_folder) if self.conductor_folder else discover(pool_file=self.pool)

    def _limits(self, defaults: Limits) -> Limits:
        values = {name: getattr(self, name) for name in LIMIT_OPTIONS}
        return defaults.model_copy(update={name: value for name, value in values.items() if value is not None})

    def policy(self, discovered: DiscoveredPool) -> Policy:
        """Returns the discovered policy, changed by the options."""
        changes: dict[str, Any] = {}
        if self.workers:
            changes["allow"] = frozenset(self.workers)
        if self.denied:
            changes["deny"] = discovered.policy.deny | frozenset(self.denied)
        policy = discovered.policy.model_copy(update=changes)
        try:
            policy.check_selectors(discovered.pool.cards, planners=[discovered.planner.card])
        except PolicyError as error:
            raise ConfigError(with_option_names(str(error))) from error
        final = policy.final
        if changes and final and policy.denial_reason(discovered.pool[final].card):
            return policy.model_copy(update={"final": None})  # options take precedence over discovery
        return policy


def with_run_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of `RunOptions` to a command, which receives them as its argument `run_options`.

    Args:
        without: fields of `RunOptions` that are no options of this command.
    """
    annotations = get_type_hints(RunOptions, include_extras=True)
    names = [field.name for field in fields(RunOptions) if field.name not in without]
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotations[name]) for name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_values(**values: Any) -> None:
            command(run_options=RunOptions(**{name: values.pop(name) for name in names}), **values)

        own = signature(command, eval_str=True)
        parameters = [parameter for name, parameter in own.parameters.items() if name != "run_options"]
        with_values.__signature__ = own.replace(parameters=[*parameters, *shared])  # type: ignore[attr-defined]
        return with_values

    return decorate


def with_option_names(error: str) -> str:
    """Replaces the names of limits and rules in an error message by the options that set them."""
    for limit in LIMIT_OPTIONS:
        error = error.replace(f"limits.{limit}=", f"--{limit} ").replace(f"limits.{limit} ", f"--{limit} ")
    return error.replace("policy.allow", "--worker").replace("policy.deny", "--deny")
