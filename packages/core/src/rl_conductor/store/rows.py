"""What goes into the store and comes out of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.trace import Round, Trace
from rl_conductor.types import Usage, Value

Status = Literal["running", "done", "failed", "cancelled"]


class NewRun(Value):
    """A run about to begin."""

    id: str
    key: str
    """Name of the API key on whose account it is."""
    idempotency: str | None = None
    """The caller's own name for the request; `None` when asking again would be a new run."""
    choice: int = 0
    """Which of the answers that the request asked for."""
    digest: str
    """SHA-256 of the request, in hex: one name must not stand for two requests."""
    api: str
    model: str
    created: float
    """Seconds since 1970."""
    labels: dict[str, str] = Field(default_factory=dict)
    """What the caller wants to find it by."""


class RunRow(NewRun):
    """A run as listed, without its trace."""

    status: Status
    seconds: float | None = None
    usage: Usage
    error: str | None = None


class Claim(Value):
    """What became of a process's wish to run something."""

    id: str
    """Of the run; that of an earlier request when the caller asks again."""
    created: float
    outcome: Literal["new", "resumed", "done", "elsewhere", "mismatch"]
    """Ours to run; ours to go on with; done already; in the hands of a living process; or another request."""
    rounds: tuple[Round, ...] = ()
    """What a resumed run had done."""
    trace: Trace | None = None
    """Of one that is done."""
