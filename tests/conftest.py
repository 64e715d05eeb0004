"""Sets up the process that runs the tests."""

from __future__ import annotations

import functools
import gc
import signal
import ssl
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell starts background jobs with Ctrl-C ignored, and subprocesses of the tests would inherit that."""

ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
"""Every HTTP client reads all root certificates, which takes 50 ms: longer than most tests."""

gc.disable()
"""Until collection is over: almost nothing that imports and collection allocate is ever freed."""

if find_spec("hypothesis") is not None:
    # Imported here because the environments for torch, vLLM and verifiers have none.
    from hypothesis import HealthCheck, settings

    # How long an example takes, or drawing it, says more of what else the machine does than of what is tested.
    settings.register_profile("busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts modules with slow tests first, those with the longest time limit before the others.

    In parallel, a module runs in one process, and none that takes minutes is left over at the end.
    """
    limits: dict[Path, float] = defaultdict(float)
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit is not None and item.get_closest_marker("slow") is not None:
            limits[item.path] = max(limits[item.path], limit.args[0])
    items.sort(key=lambda item: -limits[item.path])


def pytest_collection_finish() -> None:
    """Keeps everything imported so far out of later garbage collections, each of which would take half a second."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> None:
    """Keeps what earlier modules left behind out of garbage collections, which would take longer and longer."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Lets the last collection see everything, so that it warns of resources that nobody closed."""
    gc.unfreeze()
