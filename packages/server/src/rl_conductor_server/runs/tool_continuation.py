"""Continues runs that ended with tool calls. Each call's id refers to the run, and the store has its context.

The context of a worker can be long and can contain replies of other workers, so it is not sent to the caller. An id is
the only thing that every client returns unchanged, and other vendors reject ids of more than 40 characters when a
conversation moves on to them. The id is looked up among the runs of the caller's own key; a request with an unknown id
is planned like any other.
"""

from __future__ import annotations

import re

from rl_conductor.trace.trace import Trace
from rl_conductor.types import Message, ReasoningPart, Request, ToolCall
from rl_conductor_server.store import Store
from rl_conductor_server.store.runs.run_id import RANDOM_PART, random_part, run_in

CALL_ID = re.compile(rf"[a-z]+_({RANDOM_PART})_[0-9]+")


def tool_calls_of(trace: Trace, prefix: str) -> list[ToolCall]:
    """Returns the tool calls of an answer, with ids that refer to its run."""
    calls = trace.completion.message.tool_calls if trace.completion else ()
    suffix = random_part(trace.id)
    return [call.model_copy(update={"id": f"{prefix}_{suffix}_{number}"}) for number, call in enumerate(calls)]


async def restore_context(request: Request, store: Store, *, key: str) -> Request:
    """Adds the context of the run that made the last tool calls, if `request` ends with their results."""
    messages, last = list(request.messages), request.last_calls
    if last is None:
        return request
    run = _run_of(messages[last])
    trace = await store.get_trace(run, key=key) if run else None
    if trace is None or trace.completion is None:
        return request
    messages[last] = _restore_message(messages[last], trace.completion.message)
    return request.model_copy(update={"messages": tuple(messages)})


def _run_of(message: Message) -> str | None:
    runs = {run for call in message.tool_calls if (run := run_in(CALL_ID, call.id))}
    return runs.pop() if len(runs) == 1 else None


def _restore_message(received: Message, stored: Message) -> Message:
    """Adds the stored reasoning, which some vendors require, and the continuation to the received message."""
    reasoning = tuple(part for part in stored.content if isinstance(part, ReasoningPart))
    content = tuple(part for part in received.content if not isinstance(part, ReasoningPart))
    return received.model_copy(update={"content": (*reasoning, *content), "continuation": stored.continuation})
