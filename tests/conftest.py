"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal
from importlib.util import find_spec

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell starts what runs in the background with Ctrl-C ignored, and programs inherit that from the tests."""

if find_spec("hypothesis") is not None:
    # Imported here because the environments for torch, vLLM and verifiers have none.
    from hypothesis import HealthCheck, settings

    # How long an example takes, or drawing it, says more of what else the machine does than of what is tested.
    settings.register_profile("busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
