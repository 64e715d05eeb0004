"""OpenAI's Responses: converts traces to responses and streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rl_conductor.trace.trace import Trace
from rl_conductor.types import JsonFormat, ResponseFormat
from rl_conductor_server.api.adapter import HistoryContext, ResponseHeader, StreamEncoder, sse_event
from rl_conductor_server.api.openai_responses import conversation
from rl_conductor_server.api.openai_responses.ids import message_id, response_id
from rl_conductor_server.api.openai_responses.items import (
    incomplete_reason,
    message_item,
    output_items,
    refusal_part,
    text_part,
)
from rl_conductor_server.api.openai_responses.references import resolve_references
from rl_conductor_server.api.openai_responses.schema import ResponsesBody
from rl_conductor_server.api.openai_responses.stream_log import StreamLog
from rl_conductor_server.api.results import Results
from rl_conductor_server.errors import ApiError, openai_error_body
from rl_conductor_server.protocol import ParsedRequest, ResponseState
from rl_conductor_server.request_validation import parse_request
from rl_conductor_server.runs.handle import CANCELLED, RunHandle
from rl_conductor_server.store import Store, StoredResponse

NOT_STORED = "(not stored, as the request was rejected)"
"""The input of a request that was rejected."""
FAILURES = {
    "upstream_rate_limit": "rate_limit_exceeded",
    "upstream_error": "server_error",
    "internal_error": "server_error",
}
"""OpenAI's codes of failed responses; the others are those of the errors."""


class Responses:
    """The adapter of `POST /v1/responses`."""

    name = "responses"

    def parse(self, body: bytes, *, strict: bool) -> ParsedRequest:
        return parse_request(ResponsesBody, body, strict=strict)

    async def add_history(self, parsed: ParsedRequest, context: HistoryContext) -> ParsedRequest:
        return await conversation.add_history(await resolve_references(parsed, context), context)

    def end_turn(self, parsed: ParsedRequest, store: Store) -> None:
        conversation.end_turn(parsed, store)

    def record(self, parsed: ParsedRequest, run: RunHandle, store: Store, *, key: str, is_checked: bool) -> None:
        """Stores the request, and the answer as soon as there is one, unless the request has `store: false`.

        If guardrails check the input, both are stored with the answer, and not if a guardrail changed the request.
        """
        state = parsed.state
        if state is None or not parsed.keep:
            return
        stored = StoredResponse(
            run=run.id,
            key=key,
            previous=state.previous,
            created=run.created,
            body=state.body,
            background=state.background,
        )
        if not is_checked:
            store.responses.add(stored)
        log = None
        if (parsed.stream or state.background) and not (run.is_replayed or run.is_observed):
            log = StreamLog(run, store, has_progress=parsed.extension.progress == "chunks", is_deferred=is_checked)
        store_output = partial(
            _store_output,
            stored=stored,
            conversation_id=state.conversation,
            store=store,
            rejected_body=_rejected_body(parsed),
            is_checked=is_checked,
            log=log,
        )
        run.task.add_done_callback(store_output)
        if state.turn is not None:
            run.task.add_done_callback(lambda _: conversation.end_turn(parsed, store))
        run.confirm = store.write_queue.flush  # whoever sees the end may continue at another server

    def response(self, parsed: ParsedRequest, header: ResponseHeader, results: Results) -> dict[str, Any]:
        if not results.traces:
            return _response(parsed, header) | {"status": "queued"}
        return _response(parsed, header) | _answer_fields(results) | results.metadata(parsed.extension.trace)

    def stream(self, parsed: ParsedRequest, header: ResponseHeader) -> StreamEncoder:
        return ResponseStream(parsed, header)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return openai_error_body(error)


def _rejected_body(parsed: ParsedRequest) -> str | None:
    """Returns what is stored of a rejected request; `None` for nothing, as the client doesn't know its id."""
    if not (parsed.stream or parsed.is_background):
        return None
    body = ResponsesBody(model=parsed.model, input=NOT_STORED, background=parsed.is_background)
    return body.model_dump_json(exclude_unset=True)


def _store_output(
    task: asyncio.Task[Trace],
    *,
    stored: StoredResponse,
    conversation_id: str | None,
    store: Store,
    rejected_body: str | None,
    is_checked: bool,
    log: StreamLog | None,
) -> None:
    """Stores the answer, also as part of its conversation, if any.

    If the request was rejected, which costs nothing, no more than `rejected_body` remains of it.
    """
    if task.cancelled():
        return
    if (error := task.exception()) is not None:
        if isinstance(error, ApiError) and not is_checked:
            store.responses.discard(stored.run, rejected_body)
        return
    trace = task.result()
    if is_checked:
        if any(check.stage == "input" and check.outcome != "allowed" for check in trace.checks):
            return
        store.responses.add(stored)
        if log is not None:
            log.flush()
    output = output_items(trace)
    store.responses.set_output(stored.run, json.dumps(output))
    if conversation_id is not None:
        items = [*conversation.input_items(stored, keep_ids=False), *output]
        store.conversations.append(conversation_id, items, key=stored.key)


def unfinished(
    parsed: ParsedRequest, header: ResponseHeader, status: str, error: ApiError | None = None
) -> dict[str, Any]:
    """Builds the body of a response that has no answer, or none yet."""
    reason = None if error is None else {"code": FAILURES.get(error.code, error.code), "message": str(error)}
    return _response(parsed, header) | {"status": status, "error": reason}


@dataclass
class ResponseStream:
    """Encodes one response as events."""

    parsed: ParsedRequest
    header: ResponseHeader
    texts: list[str] = field(default_factory=list)
    """The pieces of the answer so far."""
    events: int = 0
    """The number of events so far."""
    skipped: int = 0
    """The number of first events that the client has already; they are encoded as empty strings."""

    def start(self) -> Iterator[str]:
        empty = _response(self.parsed, self.header)
        first = unfinished(self.parsed, self.header, "queued") if self.parsed.is_background else empty
        yield self._event("response.created", response=first)
        if self.parsed.is_background:
            yield self._event("response.queued", response=first)
        yield self._event("response.in_progress", response=empty)

    def text(self, choice: int, text: str) -> Iterator[str]:  # noqa: ARG002
        if not self.texts:
            yield from self._begin(text_part(""))
        self.texts.append(text)
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def progress(self, report: dict[str, Any]) -> Iterator[str]:
        yield self._event("conductor.progress", conductor=report)

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:
        if trace.completion is not None and trace.completion.is_refusal:
            yield from self._refusal(trace.text)
        elif trace.text and not self.texts:  # the run was not streamed
            yield from self.text(choice, trace.text)
        calls = [item for item in output_items(trace) if item["type"] == "function_call"]
        if self.texts:
            text = "".join(self.texts)
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            is_cut = not calls and incomplete_reason(trace) is not None
            yield from self._end(text_part(text), "incomplete" if is_cut else "completed")
        for index, call in enumerate(calls, start=int(bool(self.texts))):
            yield from self._call(index, call)
        results = Results((trace,))
        response = _response(self.parsed, self.header) | _answer_fields(results)
        response |= results.metadata(self.parsed.extension.trace)
        yield self._event(f"response.{response['status']}", response=response)

    def end(self, results: Results) -> Iterator[str]:  # noqa: ARG002
        return iter(())

    def error(self, error: ApiError) -> Iterator[str]:
        status = "cancelled" if error.code == CANCELLED else "failed"
        reason = None if status == "cancelled" else error
        yield from self.failed(unfinished(self.parsed, self.header, status, reason))

    def failed(self, response: dict[str, Any]) -> Iterator[str]:
        """Encodes the end of a response without an answer."""
        yield self._event("response.failed", response=response)

    def _refusal(self, text: str) -> Iterator[str]:
        yield from self._begin(refusal_part(""))
        yield self._event("response.refusal.delta", **self._place, delta=text)
        yield self._event("response.refusal.done", **self._place, refusal=text)
        yield from self._end(refusal_part(text))

    def _begin(self, part: dict[str, Any]) -> Iterator[str]:
        item = message_item(self.header.run, None)
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place, part=part)

    def _end(self, part: dict[str, Any], status: str = "completed") -> Iterator[str]:
        item = message_item(self.header.run, part) | {"status": status}
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)

    def _call(self, index: int, item: dict[str, Any]) -> Iterator[str]:
        place, arguments = {"output_index": index, "item_id": item["id"]}, item["arguments"]
        started = item | {"arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=started)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        yield self._event("response.output_item.done", output_index=index, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": message_id(self.header.run), "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        self.events += 1
        if self.events <= self.skipped:
            return ""
        return sse_event({"type": kind, "sequence_number": self.events - 1, **fields}, event=kind)


def _response(parsed: ParsedRequest, header: ResponseHeader) -> dict[str, Any]:
    """The fields that are known before there is an answer."""
    request, state = parsed.request, parsed.state or ResponseState()
    previous = state.previous
    choice = request.tool_choice
    function_choice = {"type": "function", "name": choice}
    return {
        "id": response_id(header.run),
        "object": "response",
        "created_at": header.created,
        "status": "in_progress",
        "model": header.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": state.instructions,
        "previous_response_id": None if previous is None else response_id(previous),
        "conversation": None if state.conversation is None else {"id": state.conversation},
        "background": state.background,
        "metadata": parsed.labels,
        "parallel_tool_calls": request.parallel_tool_calls,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_output_tokens": request.sampling.max_tokens,
        "tool_choice": choice if choice in ("auto", "none", "required") else function_choice,
        "tools": [
            {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
            | {"strict": bool(tool.strict)}
            for tool in request.tools
        ],
        "text": {"format": _text_format(request.response_format), "verbosity": "medium"},
        "reasoning": {"effort": parsed.effort, "summary": None},
        "completed_at": None,
        "max_tool_calls": None,
        "top_logprobs": 0,
        "service_tier": "default",
        "user": parsed.labels.get("user"),
        "safety_identifier": parsed.labels.get("safety_identifier"),
        "store": parsed.keep,
        "truncation": "auto" if state.may_truncate else "disabled",
    }


def _text_format(form: ResponseFormat | None) -> dict[str, Any]:
    if not isinstance(form, JsonFormat):
        return {"type": "text"}
    if form.json_schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": form.name, "schema": form.json_schema, "strict": form.strict}


def _answer_fields(results: Results) -> dict[str, Any]:
    """The fields that depend on the answer."""
    (trace,) = results.traces
    reason = incomplete_reason(trace)
    return {
        "status": "incomplete" if reason else "completed",
        "completed_at": None if reason else int(trace.created.timestamp() + trace.seconds),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output_items(trace),
        "usage": format_usage(results),
    }


def format_usage(results: Results) -> dict[str, Any]:
    """Formats the total usage and the part of it that orchestration used."""
    usage, orchestration = results.usage, results.orchestration
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "orchestration_tokens": orchestration.input_tokens,
        },
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "orchestration_tokens": orchestration.output_tokens,
        },
        "conductor": results.breakdown,
    }
