"""Tests with the frameworks of `docs/migrating.md`: collected only by `tests/environments/frameworks.sh`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("crewai") is None else []
