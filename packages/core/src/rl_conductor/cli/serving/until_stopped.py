"""Runs a server of a conductor until the process is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import typer

from rl_conductor.cli import exit_codes
from rl_conductor.cli.output import console
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.conductor import Conductor


def serve_until_stopped(
    serve: Callable[[], Coroutine[Any, Any, None]], conductor: Conductor, *, url: str | None = None
) -> None:
    """Serves with telemetry, then closes the conductor.

    Args:
        serve: returns the server's work; called in its event loop.
        conductor: the conductor that answers.
        url: the address that the user is told, if there is one.
    """
    with export_telemetry():
        if url is not None:
            console.note(console.stderr(), f"serving {url}")
        try:
            asyncio.run(_serve_and_close(serve, conductor))
        except KeyboardInterrupt:
            raise typer.Exit(exit_codes.INTERRUPTED) from None


async def _serve_and_close(serve: Callable[[], Coroutine[Any, Any, None]], conductor: Conductor) -> None:
    async with aclosing(conductor):
        await serve()
