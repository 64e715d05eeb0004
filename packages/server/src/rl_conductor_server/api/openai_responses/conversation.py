"""Conversations of the Responses API: adds the turns before a request to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pydantic import ConfigDict

from rl_conductor.types import Message, Value
from rl_conductor_server.api.openai_responses.items import output_items
from rl_conductor_server.api.openai_responses.schema import Item, MessageItem, merge_turns, to_messages
from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.protocol import ParsedRequest
from rl_conductor_server.settings import IntakeEntry
from rl_conductor_server.store import Store, StoredResponse, decode

PARAM = "previous_response_id"


class StoredInput(Value):
    """The input of a stored request, or the output of its response."""

    model_config = ConfigDict(extra="ignore")

    input: str | tuple[Item, ...]

    @property
    def items(self) -> tuple[Item, ...]:
        """The input as items."""
        return (MessageItem(role="user", content=self.input),) if isinstance(self.input, str) else self.input


def response_id(run: str) -> str:
    """Returns the id of a run's response; see `run_of`."""
    return f"resp_{run.removeprefix('run-')}" if run.startswith("run-") else run


async def add_history(parsed: ParsedRequest, store: Store, *, key: str, limits: IntakeEntry) -> ParsedRequest:
    """Adds the conversation that a request continues with `previous_response_id`, if any.

    Its instructions are left out: those of the request apply.

    Raises:
        ApiError: a response of the conversation is gone, or has no answer, or the conversation exceeds the limits.
    """
    state = parsed.state
    if state is None or state.previous is None:
        return parsed
    turns = await _load_turns(state.previous, store, key=key, limits=limits)
    history = list(_messages(turns))
    instructions = 0 if state.instructions is None or not state.instructions else 1
    request = parsed.request
    messages = tuple(merge_turns((*history, *request.messages[instructions:])))
    if len(messages) > limits.messages:
        message = f"{PARAM} continues {len(messages):,} messages; at most {limits.messages:,} are allowed"
        raise invalid_request(message, param=PARAM)
    messages = request.messages[:instructions] + messages
    return parsed.model_copy(
        update={
            "request": request.model_copy(update={"messages": messages}),
            "state": state.model_copy(update={"first": turns[0].run}),
        }
    )


async def _load_turns(run: str, store: Store, *, key: str, limits: IntakeEntry) -> Sequence[StoredResponse]:
    """Loads a conversation, oldest turn first, each with its answer."""
    turns = await store.responses.get_turns(run, key=key, max_bytes=limits.body_bytes)
    if not turns and await store.responses.get(run, key=key) is not None:
        message = (
            f"{PARAM} continues a conversation of more than {limits.body_bytes:,} bytes; send a part of it as input"
        )
        raise invalid_request(message, param=PARAM)
    missing = run if not turns else turns[0].previous
    if missing is not None:
        message = f"Previous response with id {response_id(missing)!r} not found."
        raise invalid_request(message, param=PARAM, code="previous_response_not_found")
    return [turn if turn.output is not None else await _with_output(turn, store) for turn in turns]


async def _with_output(turn: StoredResponse, store: Store) -> StoredResponse:
    """Restores the answer of a turn whose server died before it had stored it in this place, too."""
    row = await store.get_run(turn.run, key=turn.key)
    trace = await store.get_trace(turn.run, key=turn.key)
    if trace is not None and trace.completion is not None:
        return turn.model_copy(update={"output": json.dumps(output_items(trace))})
    is_running = row is not None and row.status == "running"
    state = "is still in progress; wait until it has ended" if is_running else "has no answer to continue from"
    raise invalid_request(f"Previous response {response_id(turn.run)!r} {state}.", param=PARAM)


def _messages(turns: Sequence[StoredResponse]) -> Iterator[Message]:
    for turn in turns:
        yield from to_messages(decode(StoredInput, turn.body, run=turn.run).items)
        output = f'{{"input": {turn.output}}}'
        yield from to_messages(decode(StoredInput, output, run=turn.run).items)


def not_found(run: str) -> ApiError:
    """Creates the error for a response that doesn't exist, or belongs to another API key."""
    return ApiError(f"Response with id {response_id(run)!r} not found.", status=404, code="response_not_found")
