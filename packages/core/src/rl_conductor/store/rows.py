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
    question: str = ""
    """The beginning of what was asked; empty when nothing that was said is to be kept."""


class RunRow(NewRun):
    """A run as listed, without its trace."""

    status: Status
    seconds: float | None = None
    usage: Usage
    error: str | None = None
    answer: str | None = None
    """The beginning of what was answered."""


class Search(Value):
    """Which runs are wanted: each field that is set leaves fewer."""

    text: str | None = None
    """In the beginning of the question or of the answer, in capitals or not."""
    worker: str | None = None
    """Took part; the empty name is the planner's."""
    model: str | None = None
    """The name, pinned or not, of the model that was asked."""
    key: str | None = None
    status: Status | None = None
    since: float | None = None
    """Began then or later, in seconds since 1970."""
    before: float | None = None
    """Began earlier."""


class Spending(Value):
    """What runs that began within one span of time used, by one name."""

    name: str
    start: float
    """Of the span, in seconds since 1970."""
    usage: Usage


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
