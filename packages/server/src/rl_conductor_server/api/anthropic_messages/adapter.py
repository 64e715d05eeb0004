"""Anthropic's Messages: converts traces to responses and streams. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage
from rl_conductor.types.messages import arguments_of
from rl_conductor.workflow.request_tokens import estimate_input_tokens
from rl_conductor_server.api.adapter import ResponseHeader, StreamEncoder
from rl_conductor_server.api.anthropic_messages.schema import CountTokensBody, MessagesBody
from rl_conductor_server.api.results import Results
from rl_conductor_server.api.sse import sse_event
from rl_conductor_server.errors import ApiError, anthropic_error_body
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.request_validation.parsing import parse_request
from rl_conductor_server.runs.tool_continuation import tool_calls_of

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class Messages:
    """The adapter of `POST /v1/messages`."""

    name = "messages"

    def parse(self, body: bytes, *, strict: bool) -> ParsedRequest:
        return parse_request(MessagesBody, body, strict=strict)

    def response(self, parsed: ParsedRequest, header: ResponseHeader, results: Results) -> dict[str, Any]:
        (trace,) = results.traces
        text = [{"type": "text", "text": trace.text}] if trace.text else []
        body = {"content": text + _tool_uses(trace), "usage": format_usage(results)}
        return _header_fields(header) | body | _stop_fields(trace) | results.metadata(parsed.extension.trace)

    def stream(self, parsed: ParsedRequest, header: ResponseHeader) -> StreamEncoder:
        return MessageStream(parsed, header)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return anthropic_error_body(error)


class CountTokens(Messages):
    """Parses requests to `POST /v1/messages/count_tokens`."""

    def parse(self, body: bytes, *, strict: bool) -> ParsedRequest:
        return parse_request(CountTokensBody, body, strict=strict)


@dataclass
class MessageStream:
    """Encodes one response as events."""

    parsed: ParsedRequest
    header: ResponseHeader
    blocks: int = 0
    """The number of content blocks so far."""

    def start(self) -> Iterator[str]:
        """Encodes an empty message with an estimate of its input tokens, which some clients read only here.

        At the end, the usage of the run replaces it. Its field `conductor` comes only then, because clients keep the
        first value of fields that they don't know.
        """
        usage = _token_counts(Usage()) | {"input_tokens": estimate_input_tokens(self.parsed.request)}
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=_header_fields(self.header) | empty)

    def text(self, choice: int, text: str) -> Iterator[str]:  # noqa: ARG002
        if not self.blocks:
            yield self._start_block({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def progress(self, report: dict[str, Any]) -> Iterator[str]:
        """Encodes a ping with an additional field."""
        yield _event("ping", conductor=report)

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:
        if trace.text and not self.blocks:  # a refusal
            yield from self.text(choice, trace.text)
        if self.blocks:
            yield self._stop_block()
        for call in _tool_uses(trace):
            yield self._start_block(call | {"input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(call["input"])})
            yield self._stop_block()
        results = Results((trace,))
        metadata = results.metadata(self.parsed.extension.trace)
        yield _event("message_delta", delta=_stop_fields(trace), usage=format_usage(results), **metadata)

    def end(self, results: Results) -> Iterator[str]:  # noqa: ARG002
        yield _event("message_stop")

    def error(self, error: ApiError) -> Iterator[str]:
        yield sse_event(anthropic_error_body(error), event="error")

    def _start_block(self, block: dict[str, Any]) -> str:
        self.blocks += 1
        return _event("content_block_start", index=self.blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self.blocks - 1, delta=delta)

    def _stop_block(self) -> str:
        return _event("content_block_stop", index=self.blocks - 1)


def _event(kind: str, **fields: Any) -> str:
    return sse_event({"type": kind, **fields}, event=kind)


def _header_fields(header: ResponseHeader) -> dict[str, Any]:
    return {"id": f"msg_{header.id_suffix}", "type": "message", "role": "assistant", "model": header.model}


def _stop_fields(trace: Trace) -> dict[str, Any]:
    assert trace.completion is not None
    if trace.completion.finish_reason == "stop" and trace.completion.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": trace.completion.stop_sequence}
    return {"stop_reason": STOPS[trace.completion.finish_reason], "stop_sequence": None}


def _tool_uses(trace: Trace) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)}
        for call in tool_calls_of(trace, "toolu")
    ]


def format_usage(results: Results) -> dict[str, Any]:
    """Formats the total usage and its parts."""
    return _token_counts(results.usage) | {"conductor": results.breakdown}


def _token_counts(usage: Usage) -> dict[str, Any]:
    """Formats numbers of tokens; Anthropic's `input_tokens` exclude cached tokens."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    }
