"""What the fields of the search form mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from rl_conductor_server.errors import refused
from rl_conductor_server.store import Search


def read_search(fields: Mapping[str, str]) -> Search:
    """The search that was asked for; days are those of UTC, and the last one counts.

    Raises:
        ApiError: a field can't be read.
    """
    try:
        return Search(
            text=fields.get("text"),
            worker=fields.get("worker"),
            model=fields.get("model"),
            key=fields.get("key"),
            status=fields.get("status"),
            since=_day(fields["since"]) if "since" in fields else None,
            before=_before(fields),
        )
    except (ValidationError, ValueError, OverflowError):
        raise refused("This search can't be read; start anew.") from None


def _before(fields: Mapping[str, str]) -> float | None:
    """The end of the last day, or where the page before this one ended."""
    ends = []
    if "until" in fields:
        ends.append(_day(fields["until"], days_later=1))
    if "before" in fields:
        ends.append(float(fields["before"]))
    return min(ends, default=None)


def _day(written: str, *, days_later: int = 0) -> float:
    day = datetime.strptime(written, "%Y-%m-%d").replace(tzinfo=UTC)
    return (day + timedelta(days=days_later)).timestamp()
