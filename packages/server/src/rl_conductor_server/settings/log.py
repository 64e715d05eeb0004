"""The log."""

from __future__ import annotations

from typing import Literal

from rl_conductor.pool.model_entry import Entry


class LogEntry(Entry):
    """The log on stderr: `[log]`."""

    format: Literal["text", "json"] = "text"
    """`text` for people, or `json` with one object per line for programs."""
    access: bool = True
    """Logs each request."""
