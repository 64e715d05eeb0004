"""Reads traces and workflows from files, or from stdin for `-`."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TypeVar

from pydantic import ValidationError

from rl_conductor._internal.io import read_text
from rl_conductor._internal.validation import first_field_error
from rl_conductor.cli.streams import read_stdin
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow

V = TypeVar("V", bound=Value)


def read_trace(name: str) -> Trace:
    """Reads a trace from a file, or from standard input for `-`.

    Raises:
        ConfigError: the file can't be read or is not a trace.
    """
    return _read(name, Trace, "a trace, as 'rl-conductor ask --save FILE' writes it", extra=("text", "usage"))


def read_workflow(name: str) -> Workflow:
    """Reads a workflow from a file, or from standard input for `-`.

    Raises:
        ConfigError: the file can't be read or is not a workflow.
    """
    return _read(name, Workflow, "a workflow, as 'rl-conductor plan --json' prints it")


def _read(name: str, kind: type[V], description: str, *, extra: Collection[str] = ()) -> V:
    """Reads a value; the keys `extra`, which `--json` prints for other programs, are left out."""
    text = read_stdin() if name == "-" else read_text(name)
    try:
        return kind.model_validate_json(_without_keys(text, extra) if extra else text)
    except ValidationError as error:
        raise ConfigError(f"{name!r} is not {description}: {first_field_error(error)}") from error


def _without_keys(text: str, keys: Collection[str]) -> str:
    """Removes keys from the object in `text`; text that is no JSON object, or too deep a one, stays as it is."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            return text
        return json.dumps({key: value for key, value in content.items() if key not in keys})
    except (ValueError, RecursionError):
        return text
