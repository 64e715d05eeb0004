"""Decodes rows, and stored JSON, which an older or newer release may have written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Row

from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import PlanRecord, Round, StepResult
from rl_conductor.types import Usage
from rl_conductor_server.store.tables import PLAN_POSITION, USAGE_COLUMNS

V = TypeVar("V", bound=BaseModel)


class IncompatibleReleaseError(ConfigError):
    """Another release stored the run in a format that this one can't read."""


def decode(kind: type[V], text: str, *, run: str) -> V:
    """Parses JSON that belongs to `run` as a `kind`.

    Raises:
        IncompatibleReleaseError: the JSON does not match this release's format.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise IncompatibleReleaseError(
            f"run {run!r} was stored by another release of rl-conductor, in a format that this release can't read "
            f"({first_field_error(error)}); use that release to read it"
        ) from error


def decode_rounds(rows: Iterable[Row[Any]], *, run: str) -> tuple[Round, ...]:
    """Rebuilds the rounds of `run` from its rows of `steps`, see `queries.select_steps`.

    Raises:
        IncompatibleReleaseError: the JSON does not match this release's format.
    """
    plans: dict[int, PlanRecord] = {}
    results: dict[int, list[StepResult]] = {}
    for row in rows:
        if row.position == PLAN_POSITION:
            plans[row.round] = decode(PlanRecord, row.body, run=run)
        else:
            results.setdefault(row.round, []).append(decode(StepResult, row.body, run=run))
    return tuple(Round(plan=plans[number], results=tuple(results.get(number, ()))) for number in sorted(plans))


def usage_of(row: Row[Any]) -> Usage:
    """Returns the usage of a row that has all `USAGE_COLUMNS`."""
    return Usage(**{name: getattr(row, name) for name in USAGE_COLUMNS})
