"""The version of this package, and whether libraries are installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def package_version() -> str:
    """Returns the installed version of `rl-conductor`."""
    from importlib.metadata import version  # noqa: PLC0415 - slow import: it loads `email` and `zipfile`

    return version("rl-conductor")


def is_importable(module: str) -> bool:
    """Returns whether a module is installed, without importing it; its parent packages are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
