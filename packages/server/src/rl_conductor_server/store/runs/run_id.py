"""Ids of runs; their random part is also in the vendors' ids of responses, items and tool calls."""

from __future__ import annotations

import re
import secrets

PREFIX = "run-"
RANDOM_PART = "[0-9a-f]{16}"
ITEM_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
"""How the ids of items of the Responses API begin, by their types."""
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


def first_item_ids(run: str) -> list[str]:
    """Returns the ids that the first item of a run's input or answer may have."""
    return [message_id(run), *(f"{prefix}_{random_part(run)}_0" for prefix in ITEM_PREFIXES.values())]


def message_id(run: str) -> str:
    """Returns the id of the message with a run's answer."""
    return f"msg_{random_part(run)}"


def run_of_item(item: str) -> str | None:
    """Returns the run that an item of the Responses API belongs to; `None` for ids in another format."""
    return run_in(ITEM_ID, item)
