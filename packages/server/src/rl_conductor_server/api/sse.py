"""The format of server-sent events."""

from __future__ import annotations

import json
from typing import Any

HEARTBEAT_SECONDS = 10.0
"""Interval of comments that keep the connection alive while models are silent."""
HEARTBEAT = ": still at work\n\n"


def sse_event(data: dict[str, Any], *, event: str | None = None) -> str:
    """Formats a server-sent event."""
    event_line = f"event: {event}\n" if event else ""
    return f"{event_line}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def sse_comment(report: dict[str, Any]) -> str:
    """Formats a comment, which every client of server-sent events ignores."""
    return f": {json.dumps(report, separators=(',', ':'))}\n\n"
