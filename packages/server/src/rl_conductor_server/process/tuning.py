"""Tunes a server process for many requests at once: its event loop, garbage collector, and limit of open files."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import suppress

from rl_conductor_server.settings import IntakeEntry

if sys.platform != "win32":
    import resource

try:
    import uvloop
except ImportError:  # it has no releases for Windows and PyPy
    uvloop = None  # type: ignore[assignment]

log = logging.getLogger("rl_conductor_server")

MAX_OPEN_FILES, FEW_OPEN_FILES = 65_536, 4_096
"""Open files, of which each connection takes one: the limit that a server asks for, and one that it warns of."""
MAX_CONNECTIONS = 10_000
"""Default limit of connections; so many idle ones take about 130 MB."""
FILE_SHARE = 3 / 4
"""The part of the open files that connections may take by default; calls to models and the store need others."""
GC_THRESHOLDS = (10_000, 20, 50)
"""Thresholds of the server's garbage collector; Python's own are 700, 10 and 10."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Creates the event loop of a server: uvloop's where it is available, which takes less processor time."""
    return uvloop.new_event_loop() if uvloop else asyncio.new_event_loop()


def collect_garbage_rarely() -> None:
    """Makes the collector of reference cycles run less often, and never look at the objects that exist now.

    Runs leave no cycles, and with thousands of them in progress the default thresholds take a third of the processor
    time to find none.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def allow_many_connections() -> None:
    """Raises the limit of open files as far as the system lets it, because most systems start with 1,024.

    At the limit, no client could connect any more; see `max_connections`.
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if 0 <= soft < new_limit:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
            soft = new_limit
    if 0 <= soft < FEW_OPEN_FILES:
        log.warning("at most %d files can be open, one for each client: raise the limit (ulimit -n)", soft)


def max_connections(intake: IntakeEntry) -> int:
    """Returns the limit of connections of this process: that of the settings, or else by its limit of open files."""
    if intake.connections is not None:
        return intake.connections
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, int(soft * FILE_SHARE))
