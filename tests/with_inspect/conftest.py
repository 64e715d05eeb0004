"""Tests that need inspect-ai: collected only where it is installed, by `tests/environments/inspect.sh`."""

from __future__ import annotations

from importlib.util import find_spec

from skilled_folder import learned, learned_once

__all__ = ["learned", "learned_once"]

collect_ignore_glob = ["test_*.py"] if find_spec("inspect_ai") is None else []
