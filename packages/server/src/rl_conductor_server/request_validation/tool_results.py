"""Checks that tool calls and their results belong together, since every vendor rejects others. Pure."""

from __future__ import annotations

from rl_conductor.types import ToolCall
from rl_conductor_server.errors import invalid_request
from rl_conductor_server.parsed_request import ParsedRequest

MAX_QUOTED = 64
"""Characters of an id that an error quotes."""


def check_tool_results(parsed: ParsedRequest) -> None:
    """Checks that every tool call is followed by its result, before any other message, and every result has its call.

    Raises:
        ApiError: a call or a result is alone; the error names it.
    """
    param = "messages" if parsed.state is None else "input"
    unanswered: dict[str | None, list[ToolCall]] = {}
    for message in parsed.request.messages:
        if message.role == "tool":
            calls = unanswered.get(message.tool_call_id)
            if calls is None:
                which = repr((message.tool_call_id or "")[:MAX_QUOTED])
                error = f"{param} has a tool result for {which}, which is no call of the message before the results"
                raise invalid_request(error, param=param)
            calls.pop()
            if not calls:
                del unanswered[message.tool_call_id]
        elif unanswered:
            break
        else:
            for call in message.tool_calls:
                unanswered.setdefault(call.id, []).append(call)
    for call, *_ in unanswered.values():
        which = f"{call.id[:MAX_QUOTED]!r} of {call.name[:MAX_QUOTED]!r}"
        raise invalid_request(f"{param} has the tool call {which}, but its result does not follow it", param=param)
