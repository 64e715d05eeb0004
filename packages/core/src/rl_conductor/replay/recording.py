"""The recorded calls of a trace, and a model that repeats them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from rl_conductor.errors import (
    BadRequestError,
    ConductorError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    OutputLimitError,
    OverloadedError,
)
from rl_conductor.models.base import Capabilities
from rl_conductor.trace.fingerprint import fingerprint
from rl_conductor.trace.trace import Call, Trace
from rl_conductor.types import FREE, Completion, Delta, Price, Request

NOT_RECORDED = "the recording contains no reply to this request"
WAS_CANCELLED = "the recorded call was cancelled"
"""The error of replayed calls whose recording was cancelled, such as the slower of two hedged calls. They had no effect
and are not compared."""
PARTIAL_REPLY = "..."
"""Stands for the text of a reply that broke off, which traces do not record."""
RETRY_DELAY = 1e-6
"""Seconds between two attempts of a replayed call."""


class Recording:
    """The calls of a trace, queued by model and request fingerprint in their recorded order."""

    def __init__(self, trace: Trace) -> None:
        self._queues: dict[tuple[str, str], deque[Call]] = defaultdict(deque)
        self._models_with_unpriced_calls: set[str] = set()
        for call in trace.calls:
            self._queues[call.model, call.request_fingerprint].append(call)
            if call.usage.unpriced_calls:
                self._models_with_unpriced_calls.add(call.model)

    def model(self, name: str, capabilities: Capabilities) -> RecordedModel:
        """Returns the recorded model with this name; its replies no longer contain reasoning."""
        return RecordedModel(name, capabilities.model_copy(update={"reasoning_start": "outside"}), self)

    def take(self, model: str, request: Request) -> tuple[Call | None, bool]:
        """Removes and returns the next recorded call of this request, and whether another one follows."""
        queue = self._queues[model, fingerprint(request)]
        call = queue.popleft() if queue else None
        return call, bool(queue)

    def price(self, model: str) -> Price | None:
        """Returns the price under which failed calls count as unpriced if the recorded ones did."""
        return None if model in self._models_with_unpriced_calls else FREE


@dataclass
class RecordedModel:
    """A model that repeats its recorded replies and errors."""

    name: str
    capabilities: Capabilities
    recording: Recording

    @property
    def price(self) -> Price | None:
        """Free, or unknown if the recorded model's was; see `Recording.price`."""
        return self.recording.price(self.name)

    async def complete(self, request: Request) -> Completion:
        """Returns the recorded reply or raises the recorded error."""
        return _completion_or_raise(*self._take(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the recorded reply in one delta; before an error a delta as well, if the reply had begun."""
        call, is_retried = self._take(request)
        if call.broke_off:
            yield Delta(text=PARTIAL_REPLY)
        elif call.usage.unpriced_calls:
            yield Delta()
        completion = _completion_or_raise(call, is_retried)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    def _take(self, request: Request) -> tuple[Call, bool]:
        call, is_retried = self.recording.take(self.name, request)
        if call is None:
            raise BadRequestError(f"{self.name}: {NOT_RECORDED}", model=self.name)
        return call, is_retried

    async def aclose(self) -> None:
        """Does nothing, because there is no connection to close."""


def _completion_or_raise(call: Call, is_retried: bool) -> Completion:
    if call.completion is None or call.outcome != "ok":
        raise _recorded_error(call, is_retried=is_retried)
    return call.completion


def _recorded_error(call: Call, *, is_retried: bool) -> ConductorError:
    """Recreates the error of a recorded call so that it is retried exactly if the recorded one was."""
    message = call.error or call.outcome
    if call.outcome == "cancelled":
        return BadRequestError(WAS_CANCELLED, model=call.model)
    if call.outcome == "refused":
        return LimitError(message, limit="calls", needed=0, remaining=0)
    if call.outcome == "timeout" and not call.retryable:
        return LimitError(message, limit="seconds", needed=0, remaining=0)
    if call.out_of_tokens:
        return OutputLimitError(message, model=call.model, status=None if call.usage.unpriced_calls else 429)
    error_type: type[ModelError] = ModelTimeoutError if call.outcome == "timeout" else ModelError
    if call.status == 503 and not call.usage.unpriced_calls:
        error_type = OverloadedError
    error = error_type(
        message,
        model=call.model,
        status=call.status or (None if call.usage.unpriced_calls else 429),
        retryable=call.retryable,
        retry_after=RETRY_DELAY if is_retried else math.inf,
    )
    error.min_retries = int(is_retried)
    return error
