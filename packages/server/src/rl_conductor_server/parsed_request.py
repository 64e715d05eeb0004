"""`ParsedRequest`: a request independent of its API, with the field `conductor` that extends each of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rl_conductor.types import Effort, Request, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

MAX_CHOICES = 8
SESSION_LABELS = ("session_id", "session", "conversation_id", "thread_id")
"""Metadata by which clients name the session of a request."""


def _check_integer(value: object) -> object:
    """Rejects values that pydantic would convert to an integer: `true`, and text of digits."""
    if isinstance(value, bool | str):
        raise ValueError("must be an integer")  # noqa: TRY004 - pydantic reports this type only
    return value


Integer = Annotated[int, BeforeValidator(_check_integer)]
"""An integer of a request body."""
MaxTokens = Annotated[Integer, Field(ge=1, le=10_000_000)]
"""Limit of a call's output tokens. No model writes more; a larger number would overflow budgets and the database."""
Seed = Annotated[Integer, Field(ge=-(2**63), lt=2**63)]
"""A seed of 64 bits, as vendors accept it."""
MetadataName = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataName, MetadataValue], Field(max_length=16)]
"""Metadata of a request; the limits are OpenAI's. Every list of runs contains it."""
UserName = Annotated[str, Field(max_length=512)]
"""A client's name for its end user."""
StopSequences = Annotated[tuple[str, ...], Field(max_length=64)]
"""Texts at which an answer ends; each piece of it is searched for all of them."""


class Extension(Value):
    """The field `conductor` of a request, an extension of each API: policy, limits, trace and progress of one request.

    A request can only tighten the policy and limits of the model, never relax them.
    """

    policy: Policy | None = None
    """Applied in addition to the server's own; a worker must be allowed by both."""
    limits: Limits | None = None
    """Applied in addition to the model's own; the lower value of each limit applies."""
    trace: Literal["none", "summary", "full"] = "summary"
    """How much of the run the response contains in its field `conductor`."""
    progress: Literal["comments", "chunks"] = "comments"
    """How a stream reports steps: in comments, which all clients ignore, or in chunks without choices."""


class ResponseState(Value):
    """The stateful part of a request of the Responses API."""

    input: str = ""
    """The input as JSON, without the turns before it."""
    parameters: str = ""
    """The rest of the request as JSON."""
    previous: str | None = None
    """The run whose conversation this request continues."""
    background: bool = False
    """Returns at once; the run goes on without the client, which asks for the answer later."""
    instructions: str | None = None
    conversation: str | None = None
    """The id of the conversation to which this request belongs."""
    first: str | None = None
    """The first run of the chain of responses that this request continues."""
    turn: str | None = None
    """The turn for which the conversation is locked; see `ConversationStore`."""
    references: tuple[str, ...] = ()
    """The ids of stored items in the input that are not resolved yet."""
    may_truncate: bool = False
    """Leaves out the oldest turns of a conversation that is too long, instead of rejecting the request."""
    is_truncated: bool = False
    """`True` if turns were left out."""
    input_digest: str | None = None
    """SHA-256 of the messages without those of the conversation, which is longer when the request is repeated."""


class ParsedRequest(Value):
    """A request, independent of the API that it was sent to."""

    model: str
    request: Request
    choices: int = Field(default=1, ge=1, le=MAX_CHOICES)
    effort: Effort | None = None
    extension: Extension = Extension()
    labels: dict[str, str] = Field(default_factory=dict)
    """Metadata of the caller, by which runs can be found."""
    ignored: tuple[str, ...] = ()
    """Parameters without effect here; the response lists them."""
    keep: bool = True
    """Stores the conversation after the run. Usage and cost are always stored."""
    state: ResponseState | None = None
    """Set for requests of the Responses API."""
    stream: bool = False
    usage_in_stream: bool = True

    @property
    def session(self) -> str | None:
        """The session of the run: the client's own, if its metadata names one, else the conversation's."""
        label = next((value for name in SESSION_LABELS if (value := self.labels.get(name))), None)
        return label or (self.state and (self.state.conversation or self.state.first)) or None

    @property
    def is_background(self) -> bool:
        """`True` if the run goes on without the client."""
        return self.state is not None and self.state.background
