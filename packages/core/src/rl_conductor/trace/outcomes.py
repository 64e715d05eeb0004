"""Outcomes of calls to models."""

from __future__ import annotations

from typing import Literal

CallOutcome = Literal["ok", "error", "timeout", "cancelled", "refused", "paused"]
"""How a call ended.

`refused` means that a limit, or the model's context length, stopped it before it was sent. `paused` means that its
model, an agent, waits for a person, and goes on in a later call of the step.
"""

CANCELLED: Literal["cancelled"] = "cancelled"
"""The outcome of a call, and the error of a plan, step or run, that somebody cancelled."""
FAILURES: tuple[CallOutcome, ...] = ("error", "timeout", "cancelled", "refused")
