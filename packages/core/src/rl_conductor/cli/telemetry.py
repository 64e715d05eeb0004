"""Telemetry of what a command runs, where the environment asks for it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from rl_conductor.cli import console
from rl_conductor.errors import ConfigError


def exported() -> AbstractContextManager[None]:
    """Export what runs in the block as the standard `OTEL_*` variables say; stderr is told what could not be sent.

    Raises:
        ConfigError: a variable asks for what is not installed.
    """
    if not any(name.startswith("OTEL_") for name in os.environ):
        return nullcontext()
    try:
        from rl_conductor.telemetry import exporting  # noqa: PLC0415  slow to import, and an extra
    except ConfigError as missing:  # such variables may be meant for others: no reason not to answer
        console.note(console.stderr(), f"an OTEL_* variable is set, but {missing}")
        return nullcontext()
    return exporting(lambda lost: console.note(console.stderr(), lost, "yellow"))
