"""Fixtures that the tests of evals share."""

from __future__ import annotations

from skilled_folder import learned, learned_once

__all__ = ["learned", "learned_once"]
