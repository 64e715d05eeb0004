"""The version of this package."""

from __future__ import annotations

from functools import cache


@cache
def package_version() -> str:
    """Returns the installed version of `rl-conductor`."""
    from importlib.metadata import version  # noqa: PLC0415 - slow import: it loads `email` and `zipfile`

    return version("rl-conductor")
