"""Parses the fields of the search form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from rl_conductor._internal.validation import first_field_error
from rl_conductor_server.errors import invalid_request
from rl_conductor_server.store import Search

FILTERS = ("text", "worker", "model", "key", "user", "metadata", "session", "status", "feedback")
"""Fields whose values are those of the search."""


def parse_search(fields: Mapping[str, str]) -> Search:
    """Returns the search; days are in UTC and `until` is inclusive.

    Raises:
        ApiError: a field is invalid.
    """
    try:
        filters: dict[str, Any] = {name: fields.get(name) for name in FILTERS}
        since = _timestamp(fields["since"]) if "since" in fields else None
        return Search(**filters, since=since, before=_parse_end(fields))
    except ValidationError as error:
        raise invalid_request(f"This search has an invalid filter. {first_field_error(error)}.") from None
    except (ValueError, OverflowError):
        raise invalid_request("This search has an invalid filter. Start a new search.") from None


def _parse_end(fields: Mapping[str, str]) -> float | None:
    """Returns the end of the day `until` or the paging position `before`, whichever is earlier."""
    ends = []
    if "until" in fields:
        ends.append(_timestamp(fields["until"], days_later=1))
    if "before" in fields:
        ends.append(float(fields["before"]))
    return min(ends, default=None)


def _timestamp(date: str, *, days_later: int = 0) -> float:
    midnight = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
    return (midnight + timedelta(days=days_later)).timestamp()
