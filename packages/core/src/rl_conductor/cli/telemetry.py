"""OpenTelemetry export for commands, configured by `OTEL_*` variables."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError


def export_telemetry() -> AbstractContextManager[None]:
    """Exports telemetry of runs in the block as configured by `OTEL_*` variables; prints failures to stderr.

    Raises:
        ConfigError: a variable names an exporter that is not installed.
    """
    if not any(name.startswith("OTEL_") for name in os.environ):
        return nullcontext()
    try:
        from rl_conductor.telemetry import exporting  # noqa: PLC0415  slow to import, and an extra
    except ConfigError as missing:  # the variables may be meant for other programs, so the command still runs
        console.note(console.stderr(), f"an OTEL_* variable is set, but {missing}")
        return nullcontext()
    return exporting(lambda lost: console.note(console.stderr(), lost, "yellow"))
