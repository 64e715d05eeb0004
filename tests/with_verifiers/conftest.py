"""Tests that need verifiers: collected only where it is installed, by `tests/environments/verifiers.sh`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("verifiers") is None else []
