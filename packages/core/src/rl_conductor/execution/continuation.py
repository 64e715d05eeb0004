"""A worker's continuation after its tool calls: whether a request with tool results is still about the same. Pure."""

from __future__ import annotations

import hashlib

from pydantic_core import to_json

from rl_conductor.types import Continuation, Request, prompt_in
from rl_conductor.types.messages import notes_to_results


def digest_subject(request: Request) -> str:
    """Computes the SHA-256 of a request's system messages and last user message, without notes."""
    notes = notes_to_results(request.messages)
    turns = (turn for index, turn in enumerate(request.messages) if index not in notes)
    system_texts = [turn.text for turn in turns if turn.role == "system"]
    return hashlib.sha256(to_json([*system_texts, prompt_in(request.messages)])).hexdigest()


def subject_error(request: Request, continuation: Continuation) -> str | None:
    """Returns why the tool results in a request are not for the worker that made the calls; `None` if they are.

    Another agent may have received the conversation, or the host may have shortened or corrected it.
    """
    if continuation.subject not in (None, digest_subject(request)):
        return "the system prompt or the last user message is another one now"
    offered = {tool.name for tool in request.tools}
    calls = next((message.tool_calls for message in reversed(request.messages) if message.role == "assistant"), ())
    missing = sorted({call.name for call in calls} - offered)
    return f"{', '.join(missing)} is not among the tools of the request" if offered and missing else None


def without_continuation(request: Request) -> Request:
    """Removes the continuation from the request, because a conductor in the pool would take it for its own."""
    if all(turn.continuation is None for turn in request.messages):
        return request
    turns = tuple(turn.model_copy(update={"continuation": None}) for turn in request.messages)
    return request.model_copy(update={"messages": turns})
