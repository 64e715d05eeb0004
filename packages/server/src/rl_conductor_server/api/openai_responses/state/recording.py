"""Stores the requests and answers of the Responses API, for later requests and for clients that ask again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

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
    run.task.add_done_callback(_AnswerRecorder(parsed, run, response, turn, store, log, is_checked).on_end)


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

    def on_end(self, task: asyncio.Task[Trace]) -> None:
        """Stores the answer, if there is one, after the end of the run.

        Of a request that was rejected before its run began, only `NOT_STORED` remains, or nothing if the client has no
        id of it. A run that failed later is stored, and the response is what its client deletes it by.
        """
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._store_answer(task.result())
        elif isinstance(error, ApiError) and not self.is_checked and not self.run.events_so_far:
            self._discard()

    def _discard(self) -> None:
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

    def _store_answer(self, trace: Trace) -> None:
        """Stores the answer, also as part of its conversation, if any."""
        turn, store, state = self.turn, self.store, self.parsed.state
        if self.is_checked:
            if any(check.stage == "input" and check.outcome != "allowed" for check in trace.checks):
                return
            store.responses.add(self.response, turn)
            if self.log is not None:
                self.log.flush()
        output = output_items(trace)
        store.responses.set_output(turn.run, json.dumps(output))
        if state is not None and state.conversation is not None:
            items = [*input_items(turn, keep_ids=False), *output]
            store.conversations.append(state.conversation, items, key=self.response.key)
