"""`serve`: the pool behind one name, over HTTP."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from rl_conductor.cli import options
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.output import console
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.config.discovery import DiscoveredPool, discover, from_file
from rl_conductor.errors import ConfigError

if TYPE_CHECKING:
    from rl_conductor_server.catalog import Catalogue
    from rl_conductor_server.settings import Settings

EXAMPLE = """  curl {address}/v1/chat/completions -H 'content-type: application/json'{key} \\
    -d '{{"model": "conductor-mini", "messages": [{{"role": "user", "content": "What is 12 * 12?"}}]}}'"""


def serve(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A settings file, such as conductor.toml.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, metavar="N", help="On which port.")] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Where runs are kept: sqlite:///FILE or postgres://...")
    ] = None,
    pool: options.PoolOption = None,
    new_key: Annotated[
        str | None, typer.Option("--new-key", metavar="NAME", help="Make an API key, print it, and end.")
    ] = None,
) -> None:
    """Serve the pool as OpenAI's and Anthropic's APIs do, with who did what and what it cost.

    \b
    Examples:
      rl-conductor serve
      rl-conductor serve --pool pool.toml --port 9000
      rl-conductor serve --config conductor.toml --host 0.0.0.0
      rl-conductor serve --new-key team-a
    """
    if new_key is not None:
        _print_new_key(new_key)
    else:
        _serve(_settings(config, host=host, port=port, store=store, pool=pool))


def _settings(config: Path | None, **given: object) -> Settings:
    from rl_conductor_server.settings import Settings, read_settings  # noqa: PLC0415

    settings = read_settings(config) if config else Settings()
    changed = {name: value for name, value in given.items() if value is not None}
    if "pool" in changed:
        changed |= {"workers": {}, "planner": None}
    if "store" in changed:
        changed["store"] = settings.store.model_copy(update={"url": changed["store"]})
    return settings.model_copy(update=changed)


def _serve(settings: Settings) -> None:
    from rl_conductor_server.catalog import catalogue  # noqa: PLC0415
    from rl_conductor_server.listen import listening_socket  # noqa: PLC0415

    inline = settings.inline_pool
    found = from_file(inline, "the settings describe it") if inline else discover(pool_file=settings.pool)
    served = catalogue(found, settings.profiles)
    prepare_models(next(iter(served)).conductor, found)
    # uvicorn drains, and then raises the signal once more, which by default would end us before telemetry is sent.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with export_telemetry(), listening_socket(settings) as listener, suppress(KeyboardInterrupt):
        asyncio.run(_until_told(settings, served, found, listener))


async def _until_told(settings: Settings, served: Catalogue, found: DiscoveredPool, listener: socket.socket) -> None:
    from rl_conductor_server.listen import http_server  # noqa: PLC0415
    from rl_conductor_server.service import Service  # noqa: PLC0415

    service = await Service.over(served, settings)
    _introduce(settings, service.catalogue, found, listener)
    await http_server(service).serve(sockets=[listener])


def _introduce(settings: Settings, served: Catalogue, found: DiscoveredPool, listener: socket.socket) -> None:
    from rl_conductor_server.store.database import shown  # noqa: PLC0415

    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    out = console.stdout()
    out.print(f"Serving {', '.join(one.name for one in served)} at {address}/v1", style="bold")
    for reason in found.reasons:
        console.note(out, f"  {console.one_line(reason)}")
    who = f"keys: {', '.join(settings.keys)}" if settings.keys else "no API key is set: only this machine may ask"
    console.note(out, f"  {who}")
    console.note(out, f"  runs are kept in {shown(settings.store.url)}")
    key = ' -H "authorization: Bearer $KEY"' if settings.keys else ""
    out.print(EXAMPLE.format(address=address, key=key), soft_wrap=True)


def _print_new_key(name: str) -> None:
    from rl_conductor_server.auth.keys import new_key  # noqa: PLC0415

    table = _table(name)
    key, hashed = new_key()
    out = console.stdout()
    out.print(f"{key}\n", soft_wrap=True)
    out.print(f'{table}\nsha256 = "{hashed}"', soft_wrap=True)
    console.note(console.stderr(), "This key is shown only now. The table below it goes into your settings file.")


def _table(name: str) -> str:
    """The head of a key's table.

    Raises:
        ConfigError: the settings would refuse the name.
    """
    from rl_conductor_server.settings import Name  # noqa: PLC0415

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as wrong:
        allowed = "up to 64 letters and digits of ASCII, with '.', '_' and '-' after the first"
        raise ConfigError(f"{name!r} can't name a key: write {allowed}") from wrong
    return f'[keys."{name}"]' if "." in name else f"[keys.{name}]"
