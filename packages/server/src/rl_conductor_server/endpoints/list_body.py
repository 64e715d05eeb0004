"""Lists in responses, as the vendors format them."""

from __future__ import annotations

from typing import Any


def list_body(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Formats a page of a list. Clients send `last_id` to get the next one."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return {"object": "list", "data": data, "has_more": has_more, "first_id": first, "last_id": last}
