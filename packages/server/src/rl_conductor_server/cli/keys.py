"""`keys`: creates, lists, rotates and revokes API keys and administrators in a server's store."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from rl_conductor._internal.validation import first_field_error
from rl_conductor.cli import options
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor_server.auth.created_keys import KeyTerms, check_key_name, create_key, revoke_key, rotate_key
from rl_conductor_server.auth.keys import check_new_name, configured_names
from rl_conductor_server.catalog import ModelCatalog, build_catalog
from rl_conductor_server.cli import store_options
from rl_conductor_server.cli.server_options import discover_pool
from rl_conductor_server.experiments.experiment import Experiments
from rl_conductor_server.settings import Period, Settings, read_settings
from rl_conductor_server.store import Store, StoredKey

app = typer.Typer(
    help="Create, list, rotate and revoke API keys at run time.", no_args_is_help=True, add_completion=False
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
UsdOption = Annotated[
    Decimal | None, typer.Option("--usd", parser=options.usd, metavar="USD", help="US dollars a period.")
]
TokensOption = Annotated[int | None, typer.Option("--tokens", min=0, metavar="N", help="Tokens a period.")]
PeriodOption = Annotated[Period, typer.Option("--per", help="Period of --usd and --tokens.")]
RequestsOption = Annotated[
    int | None, typer.Option("--requests-per-minute", min=1, metavar="N", help="Limit of each server process.")
]
CacheOption = Annotated[
    int | None,
    typer.Option(
        "--cache-seconds", min=1, metavar="N", help="Seconds for which the answer to the same request is repeated."
    ),
]
ModelOption = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAME", help="A model that it may use; may be repeated.")
]
MetricsOption = Annotated[bool, typer.Option("--metrics", help="Allow reading /metrics, which covers all keys.")]
AdminOption = Annotated[bool, typer.Option("--admin", help="A key for /admin and the pages, not for requests.")]
DaysOption = Annotated[
    float | None, typer.Option("--expires-in-days", min=0.001, max=36_500, metavar="N", help="Days until it expires.")
]


@app.command()
def create(
    name: Name,
    *,
    usd: UsdOption = None,
    tokens: TokensOption = None,
    per: PeriodOption = "month",
    requests_per_minute: RequestsOption = None,
    cache_seconds: CacheOption = None,
    model: ModelOption = None,
    metrics: MetricsOption = False,
    expires_in_days: DaysOption = None,
    admin: AdminOption = False,
    as_json: JsonOption = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """Create a key and print its secret, which can't be shown again.

    \b
    Examples:
      rl-conductor keys create team-a --usd 25 --per month
      rl-conductor keys create alice --admin
      rl-conductor keys create prometheus --metrics --tokens 0
    """
    _check_name(name, config)
    terms = _terms(
        usd=usd,
        tokens=tokens,
        per=per,
        requests_per_minute=requests_per_minute,
        cache_seconds=cache_seconds,
        models=frozenset(model) if model else None,
        metrics=metrics,
        expires_in_days=expires_in_days,
        admin=admin,
    )
    models = _load_models(config) if terms.models or terms.usd is not None else None
    if models is not None:
        models.check_models(terms.models or (), of="--model")
    secret = store_options.with_store(store, config, lambda opened: create_key(opened, name, terms), create=True)
    _print_secret(name, secret, as_json=as_json)
    for warning in () if models is None else models.price_warnings({name: terms}):
        console.note(console.stderr(), f"warning: {warning}", style="yellow")


@app.command(name="list")
def list_keys(
    *,
    as_json: JsonOption = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """List the keys of the store, with the dates of all their secrets. Keys of the settings file are not listed."""

    async def load(opened: Store) -> list[dict[str, Any]]:
        return [_describe(key, opened.now()) for key in await opened.keys.list_all()]

    rows = store_options.with_store(store, config, load)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table(box=None)
    for column in ("name", "for", "state", "expires", "limits"):
        table.add_column(column, overflow="fold")
    for row in rows:
        limits = " ".join(f"{name}={value}" for name, value in row["limits"].items())
        table.add_row(*(str(row[name] or "") for name in ("name", "for", "state")), (row["expires"] or "")[:16], limits)
    console.stdout().print(table)


@app.command()
def rotate(
    name: Name,
    *,
    grace_seconds: Annotated[
        float, typer.Option("--grace-seconds", min=0, metavar="N", help="Seconds for which the old secret stays valid.")
    ] = 0.0,
    as_json: JsonOption = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """Give a key a new secret and print it."""
    secret = store_options.with_store(
        store, config, lambda opened: rotate_key(opened, name, grace_seconds=grace_seconds)
    )
    _print_secret(name, secret, as_json=as_json)


@app.command()
def revoke(name: Name, *, store: store_options.StoreOption = None, config: store_options.ConfigOption = None) -> None:
    """Revoke a key. Running servers reject it within about 2 seconds; its runs in progress end as usual."""
    store_options.with_store(store, config, lambda opened: revoke_key(opened, name))
    console.note(console.stderr(), f"The key {name} is revoked.")


def _check_name(name: str, config: Path | None) -> None:
    """Checks the name of a new key. Raises `ConfigError` if it is invalid, or a name of the settings."""
    check_key_name(name)
    check_new_name(name, configured_names(read_settings(config) if config else Settings()))


def _terms(**values: Any) -> KeyTerms:
    """Checks the limits of a new key. Raises `ConfigError` if one is too large or too precise."""
    try:
        return KeyTerms(**values)
    except ValidationError as error:
        wrong = first_field_error(error)
        raise ConfigError(f"--{wrong.path.replace('_', '-')}: {wrong.message}") from error


def _load_models(config: Path | None) -> ModelCatalog | None:
    """Builds the models of the settings; `None` if these name no pool, or only the server's machine can build it."""
    settings = read_settings(config) if config else Settings()
    if not (settings.pool or settings.workers):
        return None
    with suppress(ConfigError):  # as without vendors' keys in the environment
        return Experiments(settings.experiments, build_catalog(discover_pool(settings), settings.models)).catalog
    return None


def _print_secret(name: str, secret: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"name": name, "key": secret}) + "\n")
        return
    console.stdout().print(secret, soft_wrap=True)
    console.note(console.stderr(), "The key is shown only now. Running servers accept it within about 2 seconds.")


def _describe(key: StoredKey, now: float) -> dict[str, Any]:
    state = "valid" if key.is_valid(now) else "expired" if key.revoked is None else "revoked"
    return {
        "name": key.name,
        "for": "administration" if key.admin else "requests",
        "state": state,
        "created": _format_time(key.created),
        "expires": _format_time(key.expires),
        "revoked": _format_time(key.revoked),
        "limits": json.loads(key.entry),
    }


def _format_time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
