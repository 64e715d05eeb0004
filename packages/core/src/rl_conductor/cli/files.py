"""Traces and workflows from files and to them; `-` is stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.invalid import first_problem
from rl_conductor.trace import Trace
from rl_conductor.types import Value
from rl_conductor.workflow import Workflow

V = TypeVar("V", bound=Value)


def read_trace(name: str) -> Trace:
    """The trace in a file.

    Raises:
        ConfigError: no such file, or something else in it.
    """
    return _read(name, Trace, "a trace, as 'rl-conductor ask --save FILE' writes it")


def read_workflow(name: str) -> Workflow:
    """The workflow in a file.

    Raises:
        ConfigError: no such file, or something else in it.
    """
    return _read(name, Workflow, "a workflow, as 'rl-conductor plan --json' prints it")


def writable(path: Path) -> Path:
    """`path` itself, once it is sure that a file can be there: better than to find out when all is paid."""
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"can't write {str(path)!r}: {error.strerror}") from error
    return path


def _read(name: str, kind: type[V], what: str) -> V:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return kind.model_validate_json(text)
    except OSError as error:
        raise ConfigError(f"can't read {name!r}: {error.strerror}") from error
    except (UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(f"{name!r} is not {what}: {_problem(error)}") from error


def _problem(error: ValueError) -> str:
    return str(first_problem(error)) if isinstance(error, ValidationError) else "it is not text"
