"""Tests that need torch: collected only where it is installed. `tests/environments/torch.sh` is such a place."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None else []
