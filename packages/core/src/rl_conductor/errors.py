"""The errors that callers of this package have to expect, as one tree.

    ConductorError
    ├── ConfigError                 the user can fix it: says what was given and what to write instead
    ├── PolicyError                 a rule forbids it; .rule names the rule
    ├── LimitError                  a limit would be passed, or time is over; .limit .needed .left
    ├── ModelError                  a call to a model failed; .model .status .retryable .retry_after
    │   ├── AuthenticationError     the key is missing, wrong or not entitled
    │   ├── RateLimitError          too many requests; .retry_after when the vendor said how long
    │   ├── ModelTimeoutError       no answer in time
    │   ├── ContextLengthError      the request is longer than the model can read
    │   ├── BadRequestError         the vendor refused the request as malformed or unsupported
    │   └── BadResponseError        the reply was empty, truncated or not what the protocol promises
    ├── WorkflowError               the plan is unusable; .text is what the Conductor wrote
    │   ├── WorkflowParseError      it is not in the plan language
    │   └── WorkflowValidationError it is, but no such workflow may run; .violations
    └── RunError                    a whole run ended without an answer; .trace is what happened

Foreign exceptions are translated once, in the adapter that met them. Outside of the tree stand pydantic's own
`ValidationError` of values that are built wrong, and `ScriptError`, a fault in a test that nobody may get over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

    from rl_conductor.trace.trace import Trace


class ConductorError(Exception):
    """Anything this package raises on purpose."""


class ConfigError(ConductorError):
    """A mistake the user can fix; the message says what was given and what to write instead."""


class PolicyError(ConductorError):
    """A policy rule forbids what was asked."""

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class LimitError(ConductorError):
    """A limit would be passed. Raised before the call that would pass it, so nothing was spent on it.

    Only `seconds` may be over while a call is in flight: that is given up then, and what it cost is counted.

    `needed` and `left` are in the limit's own unit (US dollars, tokens, calls, seconds, rounds).
    """

    def __init__(self, message: str, *, limit: str, needed: Decimal | float, left: Decimal | float) -> None:
        super().__init__(message)
        self.limit = limit
        self.needed = needed
        self.left = left


class ModelError(ConductorError):
    """A call to a language model failed.

    `status` is the HTTP status where there was one, `retry_after` the seconds the vendor asked us to wait.
    """

    retryable_by_default = False

    def __init__(
        self,
        message: str,
        *,
        model: str,
        status: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.model = model
        self.status = status
        self.retryable = self.retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after


class AuthenticationError(ModelError):
    """The key is missing, wrong or not entitled to the model."""


class RateLimitError(ModelError):
    """The vendor asks us to slow down, or a quota is used up."""

    retryable_by_default = True


class ModelTimeoutError(ModelError):
    """The model did not answer in time."""

    retryable_by_default = True


class ContextLengthError(ModelError):
    """The request is longer than the model can read."""


class BadRequestError(ModelError):
    """The vendor refused the request as malformed or unsupported."""


class BadResponseError(ModelError):
    """The reply was empty, truncated or not what the protocol promises."""

    retryable_by_default = True


class WorkflowError(ConductorError):
    """The plan is unusable; `text` is what the Conductor wrote."""

    def __init__(self, message: str, *, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class WorkflowParseError(WorkflowError):
    """The text is not in the plan language."""


class WorkflowValidationError(WorkflowError):
    """The plan was read, but no such workflow may run; `violations` lists every broken rule."""

    def __init__(self, *violations: str) -> None:
        super().__init__(f"the plan may not run: {'; '.join(violations)}")
        self.violations = violations


class RunError(ConductorError):
    """A whole run ended without an answer; `trace` says what happened and what it cost."""

    def __init__(self, message: str, *, trace: Trace) -> None:
        super().__init__(message)
        self.trace = trace


class ScriptError(AssertionError):
    """A `ScriptedModel` was asked for more than its script holds: a fault in the test, which no run may get over."""
