"""The errors of this package, as one tree.

    ConductorError
    ├── ConfigError                 the user can fix it: the message has the value and its correction
    ├── PolicyError                 a policy rule forbids it; .rule names the rule
    ├── LimitError                  a limit would be exceeded, or has expired; .limit .needed .remaining .owner
    ├── ModelError                  a call to a model failed; .model .status .retryable .retry_after
    │   ├── AuthenticationError     the key is missing, wrong or not entitled
    │   ├── RateLimitError          too many requests; .retry_after when the vendor said how long
    │   ├── ModelTimeoutError       the model did not answer in time
    │   ├── ContextLengthError      the request is longer than the model can read
    │   ├── UnreachableError        there was no connection to the vendor or server
    │   ├── OverloadedError         the vendor is overloaded and turned the request away
    │   ├── BadRequestError         the vendor refused the request as malformed or unsupported
    │   ├── PausedError             an agent waits for a person, and nothing here can resume it
    │   └── BadResponseError        the reply was empty, truncated or malformed
    │       ├── OutputLimitError    the model used up max_tokens before it wrote an answer
    │       └── ReplyFormatError    the reply lacks the required format or tool call; .completion
    ├── WorkflowError               the plan is unusable; .text is the planner's reply
    │   ├── WorkflowParseError      it is not in the plan language
    │   └── WorkflowValidationError it is, but the workflow may not run; .violations
    ├── RunError                    a run ended without an answer; .trace has its steps and cost
    │   └── RefusedError            a guardrail refused its input or its answer; .guardrail .stage .reason
    └── GuardrailError              a guardrail refused a text, or failed; .guardrail .stage .reason

Adapters translate the exceptions of other libraries. Outside of the tree are pydantic's `ValidationError` for invalid
values, and `ScriptError`, a fault in a test, which no run may catch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decimal import Decimal

    from rl_conductor.trace.checks import GuardrailCheck
    from rl_conductor.trace.trace import Trace
    from rl_conductor.types import Completion, Usage


class ConductorError(Exception):
    """Base class of the errors that this package raises.

    A worker's or planner's error with `ends_run` ends the run; others are retried or given to another worker.
    """

    ends_run = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Keeps the attributes for other processes; Python would call the class with the message only, which fails.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[ConductorError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> ConductorError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigError(ConductorError):
    """A configuration mistake; the message names the wrong value and its correction."""


class PolicyError(ConductorError):
    """A policy rule forbids the request; `rule` names it."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class LimitError(ConductorError):
    """A limit would be exceeded. Raised before the call that would exceed it, so that call costs nothing.

    Only `seconds` can expire while a call is in flight: the call is then cancelled and its cost counted.

    `needed` and `remaining` are in the limit's own unit (US dollars, tokens, calls, seconds, rounds). `owner` says
    whose limit it is if it is not that of a run, such as `key` for the budget of an API key.
    """

    def __init__(
        self,
        message: str,
        *,
        limit: str,
        needed: Decimal | float,
        remaining: Decimal | float,
        owner: str | None = None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.needed = needed
        self.remaining = remaining
        self.owner = owner


class ModelError(ConductorError):
    """A call to a language model failed.

    `status` is the HTTP status where there was one, `retry_after` the seconds that the vendor asks to wait, and `usage`
    that of a reply which can't be used.
    """

    retryable_by_default = False
    min_retries = 0
    """Retries that a retryable failure gets even if the run allows fewer, because its cause is in this process."""
    max_retries: int | None = None
    """Retries that it gets at most: 0 if the model's client has made its own; `None` if the run alone decides."""

    def __init__(
        self,
        message: str,
        *,
        model: str,
        status: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.model = model
        self.usage = usage
        self.status = status
        self.retryable = self.retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after


class AuthenticationError(ModelError):
    """The key is missing, wrong or not entitled to the model."""


class RateLimitError(ModelError):
    """A rate limit was hit, or a quota is used up."""

    retryable_by_default = True


class ModelTimeoutError(ModelError):
    """The model did not answer in time."""

    retryable_by_default = True


class ContextLengthError(ModelError):
    """The request exceeds the model's context length."""


class UnreachableError(ModelError):
    """There was no connection to the vendor or server, so nothing was sent or spent."""

    retryable_by_default = True


class OverloadedError(ModelError):
    """The vendor says that it is overloaded and turned the request away, so nothing was spent."""

    retryable_by_default = True


class BadRequestError(ModelError):
    """The vendor refused the request as malformed or unsupported."""


class PausedError(ModelError):
    """An agent paused to wait for a person, and its host can't resume it; a mistake in the program, so the run ends."""

    ends_run = True


class BadResponseError(ModelError):
    """The reply was empty, truncated or malformed."""

    retryable_by_default = True


class OutputLimitError(BadResponseError):
    """The model used up `max_tokens` before it wrote any answer, usually on reasoning."""

    retryable_by_default = False


class ReplyFormatError(BadResponseError):
    """The reply lacks the format, or the tool call, that the request requires; `completion` is that reply."""

    def __init__(self, message: str, *, model: str, completion: Completion) -> None:
        super().__init__(message, model=model, usage=completion.usage)
        self.completion = completion


class WorkflowError(ConductorError):
    """The plan is unusable; `text` is the planner's reply."""

    def __init__(self, message: str, *, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class WorkflowParseError(WorkflowError):
    """The text is not in the plan language."""


class WorkflowValidationError(WorkflowError):
    """The plan was parsed, but may not run; `violations` lists every broken rule."""

    def __init__(self, *violations: str) -> None:
        super().__init__(f"the plan may not run: {'; '.join(violations)}")
        self.violations = violations


class GuardrailError(ConductorError):
    """A guardrail refused a text, or failed to check it."""

    def __init__(self, check: GuardrailCheck) -> None:
        super().__init__(check.in_words)
        self.guardrail = check.guardrail
        self.stage = check.stage
        self.reason = check.reason


class RunError(ConductorError):
    """A run ended without an answer; `trace` has its steps, errors and cost."""

    def __init__(self, message: str, *, trace: Trace, ends_run: bool = False) -> None:
        super().__init__(message)
        self.trace = trace
        self.ends_run = ends_run


class RefusedError(RunError):
    """A run has no answer because a guardrail refused its input or its answer."""

    def __init__(self, message: str, *, trace: Trace, check: GuardrailCheck) -> None:
        super().__init__(message, trace=trace)
        self.guardrail = check.guardrail
        self.stage = check.stage
        self.reason = check.reason


class ScriptError(AssertionError):
    """A `ScriptedModel` got more calls than its script has replies: a fault in the test, which no run may catch."""
