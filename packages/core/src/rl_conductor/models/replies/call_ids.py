"""Gives every tool call in a conversation an id of its own, because the results of tools name their call by it.

Some servers send one id for all calls of a reply, none, or count from 0 again in each reply.
"""

from __future__ import annotations

from itertools import count

from rl_conductor.types import Completion, Request, ToolCall


def with_unique_call_ids(completion: Completion, request: Request) -> Completion:
    """Replaces the ids of calls that are empty, or that an earlier call of the reply or the conversation has."""
    calls = completion.message.tool_calls
    if not calls:
        return completion
    used = {call.id for message in request.messages for call in message.tool_calls}
    all_ids = used.union(call.id for call in calls)
    new_ids = (name for number in count(len(used)) if (name := f"call_{number}") not in all_ids)
    renamed: list[ToolCall] = []
    for call in calls:
        is_unique = call.id and call.id not in used
        renamed.append(call if is_unique else call.model_copy(update={"id": next(new_ids)}))
        used.add(call.id)
    if all(new is call for new, call in zip(renamed, calls, strict=True)):
        return completion
    message = completion.message.model_copy(update={"tool_calls": tuple(renamed)})
    return completion.model_copy(update={"message": message})
