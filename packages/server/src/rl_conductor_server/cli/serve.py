"""`serve`: starts the HTTP server, or creates an API key for it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_conductor._internal.sockets import is_loopback
from rl_conductor.cli import options
from rl_conductor.cli.output import console
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.errors import ConductorError
from rl_conductor_server.cli.server_options import load_models, merge_settings

if TYPE_CHECKING:
    from rl_conductor.config.discovered_pool import DiscoveredPool
    from rl_conductor_server.catalog import ModelCatalog
    from rl_conductor_server.service import Service
    from rl_conductor_server.settings import Settings

EXAMPLE = """  curl {address}/v1/chat/completions -H 'content-type: application/json'{key} \\
    -d '{{"model": "conductor-mini", "messages": [{{"role": "user", "content": "What is 12 * 12?"}}]}}'"""


def serve(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings file, such as server.toml.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to listen on.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="Database for runs: sqlite:///FILE or postgres://..."),
    ] = None,
    pool: options.PoolOption = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="Number of processes that share the address.")
    ] = 1,
    new_key: Annotated[
        str | None, typer.Option("--new-key", metavar="NAME", help="Create and print an API key, and exit.")
    ] = None,
) -> None:
    """Serve the pool through OpenAI's and Anthropic's APIs.

    Each answer has the steps of its run and their cost.

    \b
    Examples:
      rl-conductor serve
      rl-conductor serve --pool pool.toml --port 9000
      rl-conductor serve --config server.toml --host 0.0.0.0 --workers 4
      rl-conductor serve --new-key team-a
    """
    if new_key is not None:
        _print_new_key(new_key)
    else:
        _serve(merge_settings(config, host=host, port=port, store=store, pool=pool), workers)


def _serve(settings: Settings, workers: int) -> None:
    from rl_conductor_server.logs import configure_logging  # noqa: PLC0415
    from rl_conductor_server.process.listen import listening_socket  # noqa: PLC0415
    from rl_conductor_server.process.supervisor import Supervisor  # noqa: PLC0415

    configure_logging(settings.log)
    needs_key = not settings.keys and not is_loopback(settings.host)
    has_stored_keys = needs_key and asyncio.run(_has_stored_keys(settings))
    with listening_socket(settings, has_stored_keys=has_stored_keys) as listener:
        if workers == 1:
            _run_server(settings, listener, show_banner=True)
        else:
            Supervisor(run_worker, settings, listener, workers).run()


async def _has_stored_keys(settings: Settings) -> bool:
    from rl_conductor_server.service import open_store  # noqa: PLC0415
    from rl_conductor_server.store.database import StoreMissingError  # noqa: PLC0415

    try:
        store = await open_store(settings.store, create=False)  # a server that is refused leaves no store behind
    except StoreMissingError:
        return False
    async with aclosing(store):
        return any(not key.admin for key in await store.keys.list_all())


def run_worker(settings: Settings, listener: socket.socket, show_banner: bool) -> None:
    """Serves requests in one of several processes."""
    from rl_conductor_server.logs import configure_logging  # noqa: PLC0415
    from rl_conductor_server.process.supervisor import CONFIG_ERROR_EXIT  # noqa: PLC0415

    configure_logging(settings.log)
    try:
        _run_server(settings, listener, show_banner=show_banner)
    except ConductorError as error:
        console.fail(str(error))
        sys.exit(CONFIG_ERROR_EXIT)


def _run_server(settings: Settings, listener: socket.socket, *, show_banner: bool) -> None:
    from rl_conductor_server.process.signals import stop_on_hangup  # noqa: PLC0415
    from rl_conductor_server.process.tuning import new_event_loop  # noqa: PLC0415

    models, discovered = load_models(settings)
    # uvicorn drains and then raises the signal again; its default action would end us before telemetry is sent.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stop_on_hangup()
    serving = _serve_until_signal(settings, models, discovered, listener, show_banner=show_banner)
    with export_telemetry(), suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serving)


async def _serve_until_signal(
    settings: Settings, models: ModelCatalog, discovered: DiscoveredPool, listener: socket.socket, *, show_banner: bool
) -> None:
    from rl_conductor_server.process.listen import http_server  # noqa: PLC0415
    from rl_conductor_server.process.tuning import allow_many_connections, collect_garbage_rarely  # noqa: PLC0415
    from rl_conductor_server.service import Service  # noqa: PLC0415

    service = await Service.create(models, settings)
    if show_banner:
        _print_banner(service, discovered, listener)
    allow_many_connections()
    collect_garbage_rarely()
    await http_server(service).serve(sockets=[listener])


def _print_banner(service: Service, discovered: DiscoveredPool, listener: socket.socket) -> None:
    from rl_conductor_server.store.database import redact_url  # noqa: PLC0415

    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    out = console.stdout()
    out.print(f"Serving {', '.join(model.name for model in service.catalog)} at {address}/v1", style="bold")
    for reason in discovered.reasons:
        console.note(out, f"  {console.one_line(reason)}")
    settings, is_keyed = service.settings, service.keys.is_required
    keys = ", ".join(key.name for key in service.keys)
    console.note(out, f"  API keys: {keys}" if is_keyed else "  no API keys: only this machine has access")
    console.note(out, f"  store: {redact_url(settings.store.url)}")
    key_header = ' -H "authorization: Bearer $KEY"' if is_keyed else ""
    out.print(EXAMPLE.format(address=address, key=key_header), soft_wrap=True)


def _print_new_key(name: str) -> None:
    from rl_conductor_server.auth.created_keys import check_key_name  # noqa: PLC0415
    from rl_conductor_server.auth.key_secrets import generate_key  # noqa: PLC0415

    check_key_name(name)
    header = f'[keys."{name}"]' if "." in name else f"[keys.{name}]"
    key, hashed = generate_key()
    out = console.stdout()
    out.print(f"{key}\n", soft_wrap=True)
    out.print(f'{header}\nsha256 = "{hashed}"', soft_wrap=True)
    console.note(console.stderr(), "The key is shown only now. Add the table below it to your settings file.")
