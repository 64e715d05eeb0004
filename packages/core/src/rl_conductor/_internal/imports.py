"""Imports objects that users name in files and options, such as `my_shop.stock:find`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from rl_conductor.errors import ConfigError


def import_object(path: str) -> Any:
    """Imports `module:name`; the module may be a file or package in the current folder.

    Raises:
        ConfigError: there is no such module, it fails, or there is no such name in it.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigError(f"{path!r} is not an import path; write 'module:name'")
    try:
        imported = _import_module(module)
        if hasattr(imported, name):
            return getattr(imported, name)
    except ConfigError:  # of a module of ours, whose message says it all
        raise
    except ImportError as error:
        raise ConfigError(
            f"{path!r} can't be imported: {error}; the module must be installed, on PYTHONPATH or in the current folder"
        ) from error
    except Exception as error:  # the module's own code may raise anything
        raise ConfigError(f"{path!r} can't be imported: {type(error).__name__}: {error}") from error
    raise ConfigError(f"{path!r} can't be imported: module {module!r} has no {name!r}")


def _import_module(name: str) -> ModuleType:
    """Imports a module; looks into the current folder only if it is nowhere else, as installed commands don't."""
    package, folder = name.partition(".")[0], str(Path.cwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package or PathFinder.find_spec(package, [folder]) is None:
            raise
    sys.path.append(folder)
    return import_module(name)
