"""What goes into the store and comes out of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Text, Usage, Value

Status = Literal["running", "done", "failed", "cancelled"]

SERVER_GONE = "the server that ran it is gone"
"""How the error of such a run begins."""
BESIDE = ("shadow", "judge", "replay")
"""The `api` of runs that no user asked for."""
Side = Literal["incumbent", "conductor"]
"""Who answers a request of a route: the model that always has, or the conductor that may take its place."""
PairVerdict = Literal["win", "tie", "loss"]
"""Of the conductor's answer against the incumbent's."""


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
    labels: dict[Text, Text] = Field(default_factory=dict)
    """What the caller wants to find it by."""
    question: Text = ""
    """The beginning of what was asked; empty when nothing that was said is to be kept."""
    side: Side | None = None
    """Who answers, where a route was asked."""


class RunRow(NewRun):
    """A run as listed, without its trace."""

    status: Status
    seconds: float | None = None
    usage: Usage
    error: str | None = None
    answer: str | None = None
    """The beginning of what was answered."""

    @property
    def lost_its_server(self) -> bool:
        """Whether it ended because the server that ran it died."""
        return (self.error or "").startswith(SERVER_GONE)

    @property
    def asked_model(self) -> str:
        """The model, of a route the side that answered, and whether it was asked by nobody but the server."""
        parts = (self.model, self.side, self.api if self.api in BESIDE else None)
        return " · ".join(part for part in parts if part)


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
    charged: Amount = Amount()
    """What budgets counted for that."""
    inherited: bool = False
    """Whether another process did that, so that ours has not counted it yet."""
    trace: Trace | None = None
    """Of one that is done."""


class Answered(Value):
    """What a canary's guards want to know of a run that is over."""

    failed: bool
    seconds: float
    cost: Decimal | None
    """US dollars; `None` where the price of a call is unknown."""


class Pair(Value):
    """Two answers to one request of a route, and which of them is better."""

    run: str
    """That of the answer that the user got."""
    shadow: str
    """That of the other."""
    route: str
    """The route's pinned name."""
    created: float
    answered: Side
    """Whose answer the user got."""
    verdict: PairVerdict
    reason: str = ""
    """Why, in words; empty when nothing that was said is to be kept."""
    incumbent_cost: Decimal | None
    """US dollars; `None` where the price of a call is unknown."""
    incumbent_seconds: float
    conductor_cost: Decimal | None
    conductor_seconds: float


class Canary(Value):
    """How large a share of a route's requests the conductor answers."""

    route: str
    """The route's pinned name."""
    percent: float
    since: float
    """When it was set, in seconds since 1970."""
    reason: str
    """Why it is what it is."""
