"""Sets up the process that runs the tests."""

from __future__ import annotations

import functools
import gc
import signal
import ssl
from importlib.util import find_spec

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
