"""Ids of runs; their random part is also in the vendors' ids of responses, items and tool calls."""

from __future__ import annotations

import re
import secrets

PREFIX = "run-"
RANDOM_PART = "[0-9a-f]{16}"
ITEM_ID = re.compile(rf"[a-z]+_({RANDOM_PART})(_[0-9]+)?")
"""The id of an item of the Responses API that this server created."""


def new_run_id() -> str:
    return f"{PREFIX}{secrets.token_hex(8)}"


def random_part(run: str) -> str:
    """Returns a run's id without its prefix."""
    return run.removeprefix(PREFIX)


def run_in(pattern: re.Pattern[str], name: str) -> str | None:
    """Returns the run with the random part in the first group of `pattern`; `None` if `name` doesn't match."""
    match = pattern.fullmatch(name)
    return f"{PREFIX}{match[1]}" if match else None


def run_of_item(item: str) -> str | None:
    """Returns the run that an item of the Responses API belongs to; `None` for ids in another format."""
    return run_in(ITEM_ID, item)
