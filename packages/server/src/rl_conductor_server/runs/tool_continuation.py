"""Tool calls across turns. A call's id names the run that made it; what the next turn needs is in the store.

The prompt that a worker saw can be long and can hold what other workers said. It does not travel through the
caller: ids are all that every client and agent brings back unchanged, other vendors refuse ids of more than 40
characters when a conversation moves on to them, and evidence need not leave the house. So an id is a mere reference,
looked up among the runs of the caller's own key; what can't be found is planned like any other request.
"""

from __future__ import annotations

import re

from rl_conductor.trace.trace import Trace
from rl_conductor.types import Message, ReasoningPart, Request, ToolCall
from rl_conductor_server.store import Store

OURS = re.compile(r"[a-z]+_([0-9a-f]{16})_[0-9]+")


def calls_of(trace: Trace, prefix: str) -> list[ToolCall]:
    """The tool calls of an answer, under ids that lead back to its run."""
    calls = trace.completion.message.tool_calls if trace.completion else ()
    run = trace.id.removeprefix("run-")
    return [call.model_copy(update={"id": f"{prefix}_{run}_{number}"}) for number, call in enumerate(calls)]


async def going_on(request: Request, store: Store, *, key: str) -> Request:
    """`request` with what its last tool calls left behind, if it brings their results and the run is known."""
    messages = list(request.messages)
    last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role != "tool"), None)
    if last is None or last == len(messages) - 1 or messages[last].role != "assistant":
        return request
    run = _run_of(messages[last])
    trace = await store.trace(run, key=key) if run else None
    if trace is None or trace.completion is None:
        return request
    messages[last] = _as_it_was(messages[last], trace.completion.message)
    return request.model_copy(update={"messages": tuple(messages)})


def _run_of(message: Message) -> str | None:
    found = {match[1] for call in message.tool_calls if (match := OURS.fullmatch(call.id))}
    return f"run-{found.pop()}" if len(found) == 1 else None


def _as_it_was(brought: Message, kept: Message) -> Message:
    """The caller's message with the thoughts before it, which some vendors want back, and where to go on."""
    thoughts = tuple(part for part in kept.content if isinstance(part, ReasoningPart))
    content = tuple(part for part in brought.content if not isinstance(part, ReasoningPart))
    return brought.model_copy(update={"content": (*thoughts, *content), "continuation": kept.continuation})
