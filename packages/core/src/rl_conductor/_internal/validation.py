"""What is wrong with a value that pydantic refused, in the words of our errors: `where: message`."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError


class Problem(NamedTuple):
    """One thing that is wrong."""

    where: str
    """The path to it, such as `workers.ada.model`; empty where it is the whole that is wrong."""
    message: str
    given: Any
    """What was found there. It may be long or secret, so it is no part of the text."""

    def __str__(self) -> str:
        """As it stands in an error."""
        return f"{self.where}: {self.message}" if self.where else self.message


def problems(error: ValidationError, *, below: int = 0) -> list[Problem]:
    """All that is wrong, in pydantic's order.

    Args:
        error: what pydantic raised.
        below: how many names to leave out at the beginning of each path.
    """
    found = error.errors(include_url=False, include_context=False)
    return [Problem(".".join(map(str, one["loc"][below:])), message(one["msg"]), one["input"]) for one in found]


def first_problem(error: ValidationError) -> Problem:
    """What is wrong first, for errors of one line."""
    return problems(error)[0]


def message(text: str) -> str:
    """A message of pydantic's; of an error that a validator of ours raised, its own words."""
    return text.removeprefix("Value error, ")
