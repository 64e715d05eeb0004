"""Stores the requests and answers of the Responses API, for later requests and for clients that ask again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.openai_responses.items import input_items, output_items
from rl_conductor_server.api.openai_responses.schema import StoredParameters
from rl_conductor_server.api.openai_responses.state.history import end_turn
from rl_conductor_server.api.openai_responses.state.stream_log import StreamLog
from rl_conductor_server.errors import ApiError
from rl_conductor_server.parsed_request import ParsedRequest, ResponseState
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.store import Store, StoredResponse, StoredTurn

NOT_STORED = "(not stored, as the request was rejected)"
"""The input of a request that was rejected."""


def record(parsed: ParsedRequest, run: RunHandle, store: Store, *, key: str, is_checked: bool) -> None:
    """Stores the request, and the answer as soon as there is one, unless the request has `store: false`.

    If guardrails check the input, both are stored with the answer, and not if a guardrail changed the request. Of a
    replayed run, both are stored already, and what was deleted since then stays deleted.
    """
    state = parsed.state
    if state is None or not parsed.keep:
        return
    if not run.is_replayed:
        _record_new(parsed, state, run, store, key=key, is_checked=is_checked)
    if state.turn is not None:
        run.task.add_done_callback(lambda _: end_turn(parsed, store))
    run.confirm = store.write_queue.flush  # whoever sees the end may continue at another server


def _record_new(
    parsed: ParsedRequest, state: ResponseState, run: RunHandle, store: Store, *, key: str, is_checked: bool
) -> None:
    response = StoredResponse(
        run=run.id, key=key, created=run.created, parameters=state.parameters, background=state.background
    )
    turn = StoredTurn(run=run.id, previous=state.previous, input=state.input)
    if not is_checked:
        store.responses.add(response, turn)
    log = None
    if (parsed.stream or state.background) and not run.is_observed:
        log = StreamLog(run, store, has_progress=parsed.extension.progress == "chunks", is_deferred=is_checked)
    recorder = _AnswerRecorder(parsed, run, response, turn, store, log, is_checked)
    run.store_with_answer(recorder.prepare_write)
    run.task.add_done_callback(recorder.on_end)


@dataclass(frozen=True)
class _AnswerRecorder:
    """Stores the answer to one request."""

    parsed: ParsedRequest
    run: RunHandle
    response: StoredResponse
    turn: StoredTurn
    store: Store
    log: StreamLog | None
    is_checked: bool

    def prepare_write(self, trace: Trace) -> Callable[[Connection], None] | None:
        """Returns the write that stores the answer, also as part of its conversation, if any.

        Returns:
            `None` if the request must not be stored, because a guardrail changed it.
        """
        if self.is_checked:
            if any(check.stage == "input" and check.outcome != "allowed" for check in trace.checks):
                return None
            self.store.responses.add(self.response, self.turn)
            if self.log is not None:
                self.log.flush()
        return partial(self._store_answer, trace)

    def _store_answer(self, trace: Trace, connection: Connection) -> None:
        turn, store, state = self.turn, self.store, self.parsed.state
        output = output_items(trace)
        store.responses.set_output(connection, turn.run, json.dumps(output))
        if state is not None and state.conversation is not None:
            items = [*input_items(turn, keep_ids=False), *output]
            store.conversations.append(connection, state.conversation, items, key=self.response.key)

    def on_end(self, task: asyncio.Task[Trace]) -> None:
        """Removes a request that was rejected before its run began.

        Only `NOT_STORED` remains, or nothing if the client has no id of it. A run that failed later stays, and the
        response is what its client deletes it by.
        """
        if task.cancelled() or not isinstance(task.exception(), ApiError):
            return
        if self.is_checked or self.run.events_so_far:
            return
        parsed, responses = self.parsed, self.store.responses
        if parsed.stream or parsed.is_background:
            parameters = StoredParameters(model=parsed.model, background=parsed.is_background)
            responses.redact(
                self.turn.run,
                parameters=parameters.model_dump_json(exclude_unset=True),
                input=json.dumps(NOT_STORED),
            )
        else:
            responses.discard(self.turn.run)
