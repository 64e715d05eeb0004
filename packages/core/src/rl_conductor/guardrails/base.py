"""`Guardrail`: the interface of checks, their inputs, and their verdicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, get_args

from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.models.redaction import redacted_repr
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.checks import Stage
from rl_conductor.types import Card, Completion, FilePart, ImagePart, Message, Request

Stages = AbstractSet[Stage] | Sequence[Stage]

DEFAULT_TIMEOUT = 30.0
"""Seconds for one check."""


class CallModel(Protocol):
    """Calls a model within the limits of the run that is checked, and records the call in its trace."""

    def __call__(
        self, model: Model, request: Request, *, slot: AbstractAsyncContextManager[object] | None = None
    ) -> Awaitable[Completion]:
        """Returns the completion; `slot` limits the concurrency of the model.

        Raises:
            ModelError: the call failed.
            LimitError: a limit leaves no room for the call.
        """


@dataclass(frozen=True, kw_only=True)
class Content:
    """The input of a guardrail at one stage of a run."""

    stage: Stage
    """The stage of the check."""
    texts: tuple[str, ...]
    """Every text: of all messages with their tool calls, or of a prompt's task, replies of other steps and subtask. The
    delimiters of prompts are not among them."""
    images: tuple[ImagePart, ...] = ()
    """The images of the messages."""
    files: tuple[FilePart, ...] = ()
    """The files of the messages."""
    reply: Message | None = None
    """The whole reply, at the stages `reply` and `answer`."""
    question: str = ""
    """The text of the caller's last message."""
    evidence: tuple[str, ...] = ()
    """The sources of the reply: the replies of other steps, and results of tools."""
    worker: Card | None = None
    """The worker that is to read the prompt, or that wrote the reply; `None` at the stage `input`."""
    call: CallModel
    """Calls a model on behalf of the guardrail, within the limits of the run."""


@dataclass(frozen=True)
class Allow:
    """Uses the texts as they are."""

    reason: str = ""
    """Why, for the trace."""


@dataclass(frozen=True)
class Redact:
    """Uses other texts instead, one for each of `Content.texts`, in the same order."""

    texts: tuple[str, ...]
    """The new texts."""
    reason: str = ""
    """Why, without the redacted text."""


@dataclass(frozen=True)
class Replace:
    """Uses another text instead of the whole reply, with its tool calls; at the stages `reply` and `answer`."""

    text: str
    """The new reply."""
    reason: str = ""
    """Why the reply was replaced."""


@dataclass(frozen=True)
class Refuse:
    """Ends the run, at the stages `input` and `answer`, or the worker's call, at `prompt` and `reply`."""

    reason: str
    """Why, without quotes from the text, because the caller is told."""


Verdict = Allow | Redact | Replace | Refuse
"""The decision of a guardrail about a text."""


@dataclass(kw_only=True, eq=False)
class Guardrail(ABC):
    """A check of the inputs and outputs of a run. Subclasses implement `check`."""

    name: str
    """Its name in traces and errors."""
    stages: Stages
    """The stages at which it checks."""
    fail_open: bool = False
    """Uses the text when the check itself fails. By default it is refused then."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds after which one check has failed; the run's deadline applies as well."""
    card: Card | None = field(default=None)
    """Describes the model or service that it sends texts to, for the policy's data rules."""
    rewrites: ClassVar[bool] = False
    """Whether `check` may return `Redact` or `Replace`. Guardrails that do so run first and in their order; the others
    check the result concurrently."""

    def __post_init__(self) -> None:
        stages = [self.stages] if isinstance(self.stages, str) else list(self.stages)
        self.stages = frozenset(stage for stage in get_args(Stage) if stage in stages)
        if not stages or len(self.stages) < len(set(stages)):
            names = ", ".join(map(repr, get_args(Stage)))
            raise ConfigError(f"guardrail {self.name!r}: stages is {stages}; write one or more of {names}")

    @abstractmethod
    async def check(self, content: Content) -> Verdict:
        """Returns the verdict on `content`; an exception means that the check failed."""

    def bind(self, pool: WorkerPool) -> Guardrail:  # noqa: ARG002
        """Returns the guardrail for a conductor with this pool, in which it may look up a worker.

        Raises:
            ConfigError: the pool lacks the worker.
        """
        return self

    async def aclose(self) -> None:  # noqa: B027
        """Closes connections; by default there are none."""


def bind_guardrails(guardrails: Sequence[Guardrail], pool: WorkerPool) -> tuple[Guardrail, ...]:
    """Returns the guardrails for a conductor with this pool.

    Raises:
        ConfigError: two have the same name, one is not a guardrail, or the pool lacks the worker of one.
    """
    for guardrail in guardrails:
        if not isinstance(guardrail, Guardrail):
            raise ConfigError(f"guardrails has {redacted_repr(guardrail)}; write objects of subclasses of Guardrail")
    names = [guardrail.name for guardrail in guardrails]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"two guardrails have the name {repeated[0]!r}; pass name=... to one of them")
    return tuple(guardrail.bind(pool) for guardrail in guardrails)
