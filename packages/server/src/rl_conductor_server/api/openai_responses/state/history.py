"""Adds the turns before a request of the Responses API to it: those of a conversation, or of earlier responses."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rl_conductor.types import Message, Request
from rl_conductor_server.api.openai_responses.ids import response_id
from rl_conductor_server.api.openai_responses.items import StoredItems, output_items
from rl_conductor_server.api.openai_responses.schema import merge_turns, to_messages
from rl_conductor_server.api.openai_responses.state.errors import (
    CONVERSATION,
    PREVIOUS,
    SHORTEN,
    conversation_locked,
    conversation_not_found,
    previous_not_found,
    too_many_parts,
)
from rl_conductor_server.errors import invalid_request, storage_limit_exceeded
from rl_conductor_server.parsed_request import ParsedRequest, ResponseState
from rl_conductor_server.runs.truncation import drop_oldest_turns
from rl_conductor_server.settings import ConversationEntry, IntakeEntry
from rl_conductor_server.store import Conversation, Store, StoredTurn, decode
from rl_conductor_server.store.responses.responses import MAX_TURNS
from rl_conductor_server.threads import run_by_size


@dataclass(frozen=True)
class HistoryContext:
    """The store and the limits for loading the turns before a request."""

    store: Store
    key: str
    """The name of the API key that they must belong to."""
    limits: IntakeEntry
    storage: ConversationEntry
    idempotency_key: str | None
    reserve: Callable[[int], None]
    """Reserves memory for a number of bytes until the request ends. Raises `ApiError`."""


async def add_history(parsed: ParsedRequest, context: HistoryContext) -> ParsedRequest:
    """Adds the turns before a request that names a `previous_response_id` or a `conversation`.

    Their instructions are left out: those of the request apply. With `truncation: "auto"`, so are the oldest turns of a
    history that exceeds the limits. A conversation is locked until `end_turn`, if the request is to be added to it.

    Raises:
        ApiError: the conversation, or a response of it, is gone or has no answer, exceeds the limits, or is locked.
    """
    state = parsed.state
    if state is None or (state.previous is None and state.conversation is None):
        return parsed
    room = context.limits.parts - count_parts(parsed.request.messages)
    if state.conversation is None:
        history, state = await _load_chain(state, context, room)
        return _continue(parsed, state, history, context.limits)
    conversation = state.conversation
    if parsed.keep:
        await check_storage(context.store, context.storage, context.key)
    turn = await _lock(conversation, context) if parsed.keep else None
    state = state.model_copy(update={"turn": turn})
    try:
        digest = await run_by_size(len(state.input), lambda: _digest(parsed.request))
        state = state.model_copy(update={"input_digest": digest})
        history, state = await _load_conversation(conversation, state, context, room)
        return _continue(parsed, state, history, context.limits)
    except BaseException:
        end_turn(parsed.model_copy(update={"state": state}), context.store)
        raise


def end_turn(parsed: ParsedRequest, store: Store) -> None:
    """Unlocks the conversation of a request, unless it is still in use."""
    state = parsed.state
    if state is not None and state.conversation is not None and state.turn is not None:
        store.conversations.unlock(state.conversation, state.turn)


def _digest(request: Request) -> str:
    return hashlib.sha256(request.model_dump_json(include={"messages"}).encode()).hexdigest()


def _continue(
    parsed: ParsedRequest, state: ResponseState, history: Sequence[Message], limits: IntakeEntry
) -> ParsedRequest:
    """Adds the messages before a request, after its own instructions."""
    param = PREVIOUS if state.conversation is None else CONVERSATION
    instructions = 1 if state.instructions else 0
    request = parsed.request
    messages = tuple(merge_turns((*history, *request.messages[instructions:])))
    if state.may_truncate and len(messages) > limits.messages:
        messages = drop_oldest_turns(messages, limits.messages)
        state = state.model_copy(update={"is_truncated": True})
    if len(messages) > limits.messages:
        message = f"{param} continues {len(messages):,} messages; at most {limits.messages:,} are allowed; {SHORTEN}"
        raise invalid_request(message, param=param)
    messages = request.messages[:instructions] + messages
    return parsed.model_copy(update={"request": request.model_copy(update={"messages": messages}), "state": state})


async def _lock(conversation: str, context: HistoryContext) -> str:
    """Locks a conversation and returns its turn; repeated requests with one idempotency key are one turn.

    Raises:
        ApiError: it doesn't exist, or another request is in progress.
    """
    name = f"{context.key} {context.idempotency_key or secrets.token_hex(16)}"
    turn = hashlib.sha256(name.encode()).hexdigest()
    if not await context.store.conversations.lock(conversation, turn, key=context.key):
        await find_conversation(context.store, conversation, key=context.key)
        raise conversation_locked()
    return turn


async def check_storage(store: Store, limits: ConversationEntry, key: str, *, new: int = 0) -> None:
    """Checks that the conversations of an API key may grow, and that it may have some `new` ones.

    Raises:
        ApiError: the key has reached a limit.
    """
    used = await store.conversations.measure(key)
    if used.count + new > limits.key_conversations:
        message = f"this key may have {limits.key_conversations:,} conversations; delete some first"
        raise storage_limit_exceeded(message)
    if used.bytes >= limits.key_bytes:
        message = f"the conversations of this key may have {limits.key_bytes:,} bytes in total; delete some first"
        raise storage_limit_exceeded(message, param=CONVERSATION)


async def find_conversation(store: Store, conversation: str, *, key: str) -> Conversation:
    """Returns a conversation of an API key. Raises `ApiError` if there is none."""
    stored = await store.conversations.get(conversation, key=key)
    if stored is None:
        raise conversation_not_found(conversation)
    return stored


async def _load_conversation(
    conversation: str, state: ResponseState, context: HistoryContext, room: int
) -> tuple[list[Message], ResponseState]:
    """Loads the messages of a conversation, which may have as many content parts as there is `room`."""
    await find_conversation(context.store, conversation, key=context.key)
    store = context.store.conversations
    sizes = await store.measure_items(conversation, key=context.key)
    count, state = _fit(sizes, state, context, f"{CONVERSATION} has", CONVERSATION)
    items = await store.load_items(conversation, key=context.key, limit=count)
    newest_first = (_decode_messages(f"[{item}]", run=conversation) for item in reversed(items))
    messages, state = await run_by_size(
        sum(sizes[:count]), lambda: _take_newest(newest_first, state, context, room, CONVERSATION)
    )
    while state.is_truncated and messages and messages[0].role not in ("user", "system"):  # the rest of a turn
        messages.pop(0)
    return messages, state


def _fit(
    sizes: Sequence[int], state: ResponseState, context: HistoryContext, subject: str, param: str
) -> tuple[int, ResponseState]:
    """Reserves memory for a history, given the sizes of its parts, newest first, and returns how many of them fit.

    Raises:
        ApiError: not all of them fit, and the request doesn't allow to leave out the oldest ones.
    """
    limit = context.limits.body_bytes
    count = sum(total <= limit for total in accumulate(sizes))
    if count < len(sizes):
        if not state.may_truncate:
            message = f"{subject} more than {limit:,} bytes; {SHORTEN}"
            raise invalid_request(message, param=param)
        state = state.model_copy(update={"is_truncated": True})
    context.reserve(sum(sizes[:count]))
    return count, state


def count_parts(messages: Iterable[Message]) -> int:
    """Counts the content parts and tool calls of messages."""
    return sum(len(message.content) + len(message.tool_calls) for message in messages)


def _take_newest(
    histories: Iterable[list[Message]], state: ResponseState, context: HistoryContext, room: int, param: str
) -> tuple[list[Message], ResponseState]:
    """Joins pieces of a history, given newest first, as far as there is `room` for their content parts.

    Raises:
        ApiError: there is too little, and the request doesn't allow to leave out the oldest ones.
    """
    newest = list[list[Message]]()
    for messages in histories:
        room -= count_parts(messages)
        if room < 0:
            if not state.may_truncate:
                raise too_many_parts(param, context.limits, SHORTEN)
            state = state.model_copy(update={"is_truncated": True})
            break
        newest.append(messages)
    return [message for messages in reversed(newest) for message in messages], state


async def _load_chain(state: ResponseState, context: HistoryContext, room: int) -> tuple[list[Message], ResponseState]:
    """Loads the messages of a chain of responses, oldest turn first, each with its answer; see `_load_conversation`."""
    run, store = state.previous, context.store
    assert run is not None
    chain = await store.responses.measure_turns(run, key=context.key)
    if not chain:
        raise previous_not_found(run)
    sizes = [size for _, size in chain]
    count, state = _fit(sizes, state, context, f"{PREVIOUS} continues a conversation of", PREVIOUS)
    turns = await store.responses.get_turns(run, key=context.key, limit=count) if count else []
    if count == len(chain) and (missing := turns[0].previous) is not None:
        if not state.may_truncate or len(chain) < MAX_TURNS:
            raise previous_not_found(missing)
        state = state.model_copy(update={"is_truncated": True})
    complete = [turn if turn.output is not None else await _with_output(turn, context) for turn in turns]
    state = state.model_copy(update={"first": chain[-1][0]})
    newest_first = (_messages_of(turn) for turn in reversed(complete))
    return await run_by_size(sum(sizes[:count]), lambda: _take_newest(newest_first, state, context, room, PREVIOUS))


async def _with_output(turn: StoredTurn, context: HistoryContext) -> StoredTurn:
    """Restores the answer of a turn from its run, if the server died before it was stored with the turn, too."""
    row = await context.store.get_run(turn.run, key=context.key)
    trace = await context.store.get_trace(turn.run, key=context.key)
    if trace is not None and trace.completion is not None:
        return turn.model_copy(update={"output": json.dumps(output_items(trace))})
    is_running = row is not None and row.status == "running"
    state = "is still in progress; wait until it has ended" if is_running else "has no answer to continue from"
    raise invalid_request(f"Previous response {response_id(turn.run)!r} {state}.", param=PREVIOUS)


def _messages_of(turn: StoredTurn) -> list[Message]:
    return [*_decode_messages(turn.input, run=turn.run), *_decode_messages(turn.output or "[]", run=turn.run)]


def _decode_messages(items: str, *, run: str) -> list[Message]:
    """Converts stored items, as JSON, to messages."""
    return list(to_messages(decode(StoredItems, items, run=run).items))
