"""Leaves out the oldest turns of a conversation that is too long, if the client allows that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rl_conductor.pool.pool import WorkerPool
from rl_conductor.types import Message, Request
from rl_conductor.workflow.request_tokens import estimate_input_tokens
from rl_conductor_server.parsed_request import ParsedRequest

REPLY_SHARE = 4
"""The part of a model's context that is left for replies, unless the request limits the reply: one in so many."""


def drop_oldest_turns(
    messages: Sequence[Message], max_cost: int, *, cost: Callable[[Sequence[Message]], int] = len
) -> tuple[Message, ...]:
    """Leaves out turns from the oldest one on until the messages cost at most `max_cost`.

    A turn begins with a message of the user, so tool calls and their results stay together. System messages and the
    last turn are always kept, even if they cost more.
    """
    turns: list[list[Message]] = [[]]
    for message in messages:
        if message.role == "user" and turns[-1]:
            turns.append([])
        turns[-1].append(message)
    excess = cost(messages) - max_cost
    remaining = list[Message]()
    for turn in turns[:-1]:
        if excess > 0:
            excess -= cost([message for message in turn if message.role != "system"])
            remaining += [message for message in turn if message.role == "system"]
        else:
            remaining += turn
    return (*remaining, *turns[-1])


def fit_context(parsed: ParsedRequest, pool: WorkerPool, workers: Collection[str]) -> ParsedRequest:
    """Leaves out the oldest turns that exceed the contexts of all `workers`, if the request has `truncation: "auto"`.

    A worker whose context is unknown may have any.
    """
    contexts = [pool[name].model.capabilities.context for name in workers]
    limits = [context for context in contexts if context is not None]
    state, request = parsed.state, parsed.request
    if state is None or not state.may_truncate or not limits or len(limits) < len(contexts):
        return parsed
    reply = request.sampling.max_tokens or max(limits) // REPLY_SHARE
    other = estimate_input_tokens(request.model_copy(update={"messages": ()}))
    messages = drop_oldest_turns(request.messages, max(limits) - reply - other, cost=_count_tokens)
    if len(messages) == len(request.messages):
        return parsed
    changes = {"request": request.model_copy(update={"messages": messages})}
    return parsed.model_copy(update=changes | {"state": state.model_copy(update={"is_truncated": True})})


def _count_tokens(messages: Sequence[Message]) -> int:
    return estimate_input_tokens(Request(messages=tuple(messages)))
