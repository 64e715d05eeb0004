"""The version of this package."""

from __future__ import annotations

from functools import cache


@cache
def package_version() -> str:
    """As installed."""
    from importlib.metadata import version  # noqa: PLC0415 - it brings along what reads mail and archives

    return version("rl-conductor")
