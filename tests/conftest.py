"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell starts what runs in the background with Ctrl-C ignored, and programs inherit that from the tests."""
