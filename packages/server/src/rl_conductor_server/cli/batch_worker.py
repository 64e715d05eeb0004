"""`batch-worker`: processes batches in a process of its own, on any machine that reaches the server's store."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_conductor.cli import options
from rl_conductor.cli.output import console
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor_server.cli.server_options import load_models, merge_settings

if TYPE_CHECKING:
    from rl_conductor_server.catalog import ModelCatalog
    from rl_conductor_server.settings import Settings


def batch_worker(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The server's settings file, such as server.toml."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The server's store: sqlite:///FILE or postgres://...")
    ] = None,
    pool: options.PoolOption = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, metavar="N", help="Maximum number of requests at once.")
    ] = 16,
) -> None:
    """Process the batches of a server.

    Use the settings of the server. Start as many as you like, on several machines.

    \b
    Examples:
      rl-conductor batch-worker --config server.toml
      rl-conductor batch-worker --config server.toml --concurrency 64
    """
    from rl_conductor_server.logs import configure_logging  # noqa: PLC0415

    settings = merge_settings(config, store=store, pool=pool)
    configure_logging(settings.log)
    models, _ = load_models(settings)
    with export_telemetry():
        asyncio.run(_work_until_signal(settings, models, concurrency))


async def _work_until_signal(settings: Settings, models: ModelCatalog, concurrency: int) -> None:
    from rl_conductor_server.batches.processor import BatchProcessor  # noqa: PLC0415
    from rl_conductor_server.process.signals import stop_on_hangup  # noqa: PLC0415
    from rl_conductor_server.service import Service  # noqa: PLC0415
    from rl_conductor_server.store.database import redact_url  # noqa: PLC0415

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stop_on_hangup()
    service = await Service.create(models, settings)
    async with service.open(), BatchProcessor(service, concurrency=concurrency).open():
        console.stdout().print(
            f"Processing batches of {redact_url(settings.store.url)}, {concurrency} requests at once", style="bold"
        )
        await stop.wait()
