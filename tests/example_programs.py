"""The programs in `examples/`, for tests that run them."""

from __future__ import annotations

from pathlib import Path

PROGRAMS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
REAL_MODELS = {"llamaindex_swap", "quickstart", "rag_swap"}
"""Those that run the embedded models."""
