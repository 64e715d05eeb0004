"""Answers that a guardrail refused, as vendors report filtered content."""

from __future__ import annotations

from rl_conductor.errors import RefusedError
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Message
from rl_conductor_server.errors import ApiError

ANTHROPIC = "messages"
"""The API that has no error for refused requests: its vendor answers them with `stop_reason: refusal`."""


def with_refusal(trace: Trace, api: str) -> Trace:
    """Adds an empty, filtered completion to the trace of a run without an answer, if a guardrail refused that.

    So are refused requests of Anthropic's API; those of the others get an error, see `refusal_error`.
    """
    refusal = trace.refusal
    if refusal is None or (refusal.stage == "input" and api != ANTHROPIC):
        return trace
    completion = Completion(
        message=Message.assistant(), usage=trace.usage, finish_reason="content_filter", model=trace.planner
    )
    return trace.model_copy(update={"completion": completion})


def refusal_error(error: RefusedError) -> ApiError:
    """Returns the error of a refused request."""
    message = f"the request was refused: {error.reason}"
    return ApiError(message, status=400, code="content_policy_violation")
