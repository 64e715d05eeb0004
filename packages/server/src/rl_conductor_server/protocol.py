"""What the three protocols have in common: how bodies are read, what is asked, and who translates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rl_conductor._internal.validation import clean_message
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Effort, Request, Value
from rl_conductor_server.errors import ApiError, refused
from rl_conductor_server.extension import Extension

B = TypeVar("B", bound="Body")
MOST_CHOICES = 8
MaxTokens = Annotated[int, Field(ge=1, le=10_000_000)]
"""Most output tokens of a call. No model writes as many; a larger number would overflow budgets and the database."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A seed of 64 bits, as vendors take it."""


class Body(BaseModel):
    """A part of a request's body: what it does not know is refused, never dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Ask(Value):
    """What a caller asks, whatever protocol it came by."""

    model: str
    request: Request
    choices: int = Field(default=1, ge=1, le=MOST_CHOICES)
    effort: Effort | None = None
    extension: Extension = Extension()
    labels: dict[str, str] = Field(default_factory=dict)
    """What the caller wants to find the run by."""
    ignored: tuple[str, ...] = ()
    """Hints that change nothing here; the reply says so."""
    keep: bool = True
    """Whether what was said is kept once it is answered; what it cost always is."""
    stream: bool = False
    usage_in_stream: bool = True


@dataclass(frozen=True)
class Head:
    """What the start of a reply says of the run behind it."""

    run: str
    created: int
    model: str
    """The pinned name of the model that was asked."""
    fingerprint: str
    """Of everything that could change the answers of that model."""

    @property
    def number(self) -> str:
        """The run's id without its prefix, for ids of the protocol's own."""
        return self.run.removeprefix("run-")


class Stream(Protocol):
    """Writes one streamed reply, frame by frame."""

    def start(self) -> Iterator[str]:
        """What comes before the first word."""

    def text(self, choice: int, text: str) -> Iterator[str]:
        """A piece of an answer."""

    def note(self, progress: dict[str, Any]) -> Iterator[str]:
        """A chunk that tells of the run; every client must be able to skip it."""

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:
        """The rest of an answer, once its run is over."""

    def end(self, traces: Sequence[Trace]) -> Iterator[str]:
        """What comes after the last answer."""

    def fail(self, error: ApiError) -> Iterator[str]:
        """The end of a stream that broke off."""


class Api(Protocol):
    """One protocol."""

    name: str

    def read(self, body: bytes) -> Ask:
        """What is asked. Raises `ApiError`."""

    def reply(self, ask: Ask, head: Head, traces: Sequence[Trace]) -> dict[str, Any]:
        """The whole answer."""

    def stream(self, ask: Ask, head: Head) -> Stream:
        """The answer piece by piece."""

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""


def read_body(kind: type[B], body: bytes) -> B:
    """`body`, checked.

    Raises:
        ApiError: it is no such thing; it names the field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _unreadable(error) from None


def _unreadable(error: ValidationError) -> ApiError:
    problems = error.errors(include_input=False, include_url=False)
    first = max(problems, key=lambda problem: len(problem["loc"]))  # of several readings, the one that came furthest
    param = ".".join(str(part) for part in first["loc"]) or None
    match first["type"]:
        case "extra_forbidden":
            return refused("unknown parameter; leave it out", param=param, code="unknown_parameter")
        case "missing":
            return refused("missing", param=param, code="missing_required_parameter")
        case "json_invalid":
            return refused(f"the body is not JSON: {first['msg']}", code="invalid_json")
        case _:
            return refused(clean_message(first["msg"]), param=param)


def only(*neutral: object) -> AfterValidator:
    """A parameter that can't be honoured, but may be written out at the value at which it does nothing."""

    def check(value: object) -> object:
        if value is None or value in neutral:
            return value
        raise ValueError("can't be honoured here, where models of several vendors answer together; leave it out")

    return AfterValidator(check)


def sse(data: dict[str, Any], *, event: str | None = None) -> str:
    """One server-sent event."""
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def comment(progress: dict[str, Any]) -> str:
    """A comment, which every client of server-sent events skips."""
    return f": {json.dumps(progress, separators=(',', ':'))}\n\n"
