"""Values that the store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.trace.trace import Round
from rl_conductor.types import Text, Usage, Value

Status = Literal["running", "done", "failed", "cancelled"]

SERVER_GONE = "the server that ran it is gone"
"""Prefix of the error of a run whose lease expired."""
SHADOW, JUDGE, REPLAY = "shadow", "judge", "replay"
COMPARISON_APIS = (SHADOW, JUDGE)
"""The `api` of runs that compare the arms of an experiment; nobody waits for them."""
INTERNAL_APIS = (*COMPARISON_APIS, REPLAY)
"""The `api` of runs that no client requested."""
SHADOW_OF, REPLAY_OF = "shadow_of", "replay_of"
"""Labels with the id of the run that a comparison or a replay repeats."""
USER_LABELS = ("safety_identifier", "user", "user_id", "user_email")
"""Labels by which clients name their end user, the one that identifies them best first."""
Arm = Literal["baseline", "conductor"]
"""The two arms of an experiment: `baseline` is the model in use before; `conductor` may replace it."""
PairVerdict = Literal["win", "tie", "loss"]
"""The result of the conductor's answer against the baseline's."""
FeedbackFilter = Literal["positive", "negative", "none"]
"""Filters runs by their feedback; one with contradictory feedback is both positive and negative."""
SearchText = Annotated[str, Field(max_length=1_000)]
"""A text to search for; SQLite accepts no pattern of more than 50,000 characters."""
SpendingGroup = Literal["worker", "model", "key"]
"""The columns by which spending can be grouped."""


def end_users(labels: Mapping[str, str]) -> list[str]:
    """Returns the names of the end user in a client's metadata, the one that identifies them best first."""
    return list(dict.fromkeys(name for label in USER_LABELS if (name := labels.get(label))))


class NewRun(Value):
    """A run about to begin."""

    id: str
    key: str
    """Name of the API key that pays for it."""
    idempotency_key: str | None = None
    """The client's `Idempotency-Key`; without one, sending the request again starts a new run."""
    choice: int = 0
    """Index of the choice, for requests that ask for several."""
    digest: str = ""
    """SHA-256 of a request with an idempotency key, in hex; detects a key that is reused for another request."""
    api: str
    model: str
    created: float
    """Seconds since 1970."""
    labels: dict[Text, Text] = Field(default_factory=dict)
    """The client's metadata."""
    question: Text = ""
    """Excerpt of the user's last message; empty when no content may be stored."""
    arm: Arm | None = None
    """The arm that answers, if the model is an experiment."""
    cache_digest: str | None = None
    """SHA-256 of everything that affects the answer, in hex, if later requests may get it from the response cache."""
    cached_from: str | None = None
    """The run whose answer this one repeats, from the response cache."""
    saved_usd: Decimal = Decimal(0)
    """The cost of that answer."""
    session: Text | None = None
    """Groups the runs of one conversation; the first run of a chain of responses has none, but gives its id to it."""

    @property
    def source(self) -> str | None:
        """The run whose content this one repeats: of which it is a replay or a hit of the response cache."""
        return self.labels.get(REPLAY_OF) if self.api == REPLAY else self.cached_from

    @property
    def users(self) -> list[str]:
        """The names that the client gave of the end user."""
        return end_users(self.labels)


class RunRow(NewRun):
    """A run as listed, without its trace."""

    status: Status
    seconds: float | None = None
    usage: Usage
    error: str | None = None
    error_code: str | None = None
    """The code of the error that its client got, if the trace does not show why the run ended."""
    answer: str | None = None
    """Excerpt of the answer."""

    @property
    def lost_its_server(self) -> bool:
        """Whether the run ended because its server died and its lease expired."""
        return (self.error or "").startswith(SERVER_GONE)

    @property
    def model_label(self) -> str:
        """The model, with the experiment's arm and the internal API, if any."""
        parts = (self.model, self.arm, self.api if self.api in INTERNAL_APIS else None)
        return " · ".join(part for part in parts if part)


class Search(Value):
    """A search for runs that match every field that is set."""

    text: SearchText | None = None
    """Occurs in the excerpt of the question or of the answer, ignoring case."""
    worker: SearchText | None = None
    """Was called; the empty string means the planner."""
    model: SearchText | None = None
    """Name of the requested model, with or without its release date."""
    key: SearchText | None = None
    user: SearchText | None = None
    """Name of the end user, as the client gave it, ignoring case."""
    metadata: SearchText | None = None
    """An entry of the client's metadata as `name=value`, or a part of any name or value; ignores case."""
    session: SearchText | None = None
    """The session of the run, or the id of the session's first run."""
    status: Status | None = None
    since: float | None = None
    """Began at this time or later, in seconds since 1970."""
    before: float | None = None
    """Began before this time, in seconds since 1970."""
    feedback: FeedbackFilter | None = None
    """Has a positive score, has a negative one, or has no feedback."""


class Session(Value):
    """The runs of one conversation."""

    key: str
    session: str
    turns: int
    usage: Usage
    first: float
    """When the first run began, in seconds since 1970."""
    last: float
    """When the newest run began."""


class Spending(Value):
    """Usage of one worker, model or key by the runs that began in one interval of time."""

    name: str
    start: float
    """Start of the interval, in seconds since 1970."""
    usage: Usage


class KeySpending(NamedTuple):
    """The spending of an API key in a period."""

    usage: Usage
    """The usage of its runs."""
    charged: Amount
    """The charges to its budget: the usage, calls that may have been billed, and the shares of dead processes."""


class Claim(Value):
    """The result of claiming a run."""

    id: str
    """Id of the claimed run, or of the earlier run of the same request."""
    created: float
    outcome: Literal["new", "resumed", "done", "elsewhere", "mismatch"]
    """`new` or `resumed`: the run is this process's; `done`: it has an answer, in its trace; `elsewhere`: another
    process holds a valid lease; `mismatch`: the idempotency key was used for another request."""
    rounds: tuple[Round, ...] = ()
    """Plans and finished steps of a resumed run."""
    charged: Amount = NOTHING
    """The amount already charged to the key's budget for a resumed run."""


class StoredAnswer(Value):
    """A stored answer to a request with an idempotency key, without its trace."""

    id: str
    created: float
    digest: str
    """The digest of the request, see `NewRun`."""


class AnswerOutcome(Value):
    """An answer as a canary's guards see it."""

    failed: bool
    seconds: float
    cost: Decimal | None
    """US dollars; `None` if the price of a call is unknown."""


class Pair(Value):
    """Two answers to one request of an experiment, and the verdict on them."""

    run: str
    """Id of the run whose answer the user got."""
    shadow: str
    """Id of the run of the other arm."""
    experiment: str
    """The experiment's pinned name."""
    created: float
    arm: Arm
    """The arm whose answer the user got."""
    verdict: PairVerdict
    reason: str = ""
    """Explains the verdict; empty when no content may be stored."""
    baseline_cost: Decimal | None
    """US dollars; `None` if the price of a call is unknown."""
    baseline_seconds: float
    conductor_cost: Decimal | None
    conductor_seconds: float


class Canary(Value):
    """The percentage of an experiment's requests that the conductor answers."""

    experiment: str
    """The experiment's pinned name."""
    percent: float
    since: float
    """Time of the last change, in seconds since 1970."""
    reason: str
    """Explains the last change."""
