"""OpenAI's Chat Completions: converts traces to responses and streams. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, FinishReason
from rl_conductor_server.api.adapter import ResponseHeader, StreamEncoder
from rl_conductor_server.api.openai_chat.schema import ChatBody
from rl_conductor_server.api.results import Results
from rl_conductor_server.api.sse import sse_event
from rl_conductor_server.errors import ApiError, openai_error_body
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.request_validation.parsing import parse_request
from rl_conductor_server.runs.tool_continuation import tool_calls_of

DONE = "data: [DONE]\n\n"


class ChatCompletions:
    """The adapter of `POST /v1/chat/completions`."""

    name = "chat"

    def parse(self, body: bytes, *, strict: bool) -> ParsedRequest:
        return parse_request(ChatBody, body, strict=strict)

    def response(self, parsed: ParsedRequest, header: ResponseHeader, results: Results) -> dict[str, Any]:
        choices = [_choice(index, trace) for index, trace in enumerate(results.traces)]
        body = {"object": "chat.completion", "choices": choices, "usage": format_usage(results)}
        return _header_fields(header) | body | results.metadata(parsed.extension.trace)

    def stream(self, parsed: ParsedRequest, header: ResponseHeader) -> StreamEncoder:
        return ChatStream(parsed, header)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return openai_error_body(error)


@dataclass
class ChatStream:
    """Encodes one response as chunks."""

    parsed: ParsedRequest
    header: ResponseHeader

    def start(self) -> Iterator[str]:
        for choice in range(self.parsed.choices):
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def text(self, choice: int, text: str) -> Iterator[str]:
        yield self._chunk(choice, {"content": text})

    def progress(self, report: dict[str, Any]) -> Iterator[str]:
        yield self._frame([], conductor=report)

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:
        assert trace.completion is not None
        if trace.completion.is_refusal:
            yield self._chunk(choice, {"refusal": trace.text})
        calls = _tool_calls(trace)
        if calls:
            yield self._chunk(choice, {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
        end = {"index": choice, "delta": {}, "logprobs": None, "finish_reason": _finish_reason(trace.completion)}
        yield self._frame([end], **Results((trace,)).metadata(self.parsed.extension.trace))

    def end(self, results: Results) -> Iterator[str]:
        if self.parsed.usage_in_stream:
            yield self._frame([], usage=format_usage(results))
        yield DONE

    def error(self, error: ApiError) -> Iterator[str]:
        yield sse_event(openai_error_body(error))

    def _chunk(self, choice: int, delta: dict[str, Any]) -> str:
        return self._frame([{"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _frame(self, choices: list[dict[str, Any]], **fields: Any) -> str:
        empty_usage = {"usage": None} if self.parsed.usage_in_stream else {}
        chunk = {"object": "chat.completion.chunk", "choices": choices}
        return sse_event(_header_fields(self.header) | chunk | empty_usage | fields)


def _header_fields(header: ResponseHeader) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{header.id_suffix}",
        "created": header.created,
        "model": header.model,
        "system_fingerprint": header.fingerprint,
        "service_tier": "default",
    }


def _choice(index: int, trace: Trace) -> dict[str, Any]:
    assert trace.completion is not None
    calls, text = _tool_calls(trace), trace.text or None
    content, refusal = (None, text) if trace.completion.is_refusal else (text, None)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    return {"index": index, "message": message, "logprobs": None, "finish_reason": _finish_reason(trace.completion)}


def _finish_reason(completion: Completion) -> FinishReason:
    return "stop" if completion.is_refusal else completion.finish_reason


def _tool_calls(trace: Trace) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in tool_calls_of(trace, "call")
    ]


def format_usage(results: Results) -> dict[str, Any]:
    """Formats the total usage and the part of it that orchestration used."""
    usage, orchestration = results.usage, results.orchestration
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "orchestration_tokens": orchestration.input_tokens,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "orchestration_tokens": orchestration.output_tokens,
        },
        "conductor": results.breakdown,
    }
