"""Traces and workflows from files; `-` is stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rl_conductor._internal.io import reading_errors
from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow

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


def _read(name: str, kind: type[V], what: str) -> V:
    with reading_errors(name):
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{name!r} is not {what}: {first_field_error(error)}") from error
