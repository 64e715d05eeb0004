"""OpenAI's Chat Completions: our answers in its words, whole and streamed. Pure translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.metadata import breakdown, orchestration, told, used
from rl_conductor_server.api.openai_chat.schema import ChatBody
from rl_conductor_server.errors import ApiError, openai_body
from rl_conductor_server.protocol import Ask, Head, Stream, read_body, sse
from rl_conductor_server.runs.tool_continuation import calls_of

DONE = "data: [DONE]\n\n"


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    name = "chat"

    def read(self, body: bytes) -> Ask:
        """What is asked."""
        return read_body(ChatBody, body).ask()

    def reply(self, ask: Ask, head: Head, traces: Sequence[Trace]) -> dict[str, Any]:
        """The whole answer; with several choices, the field `conductor` tells of the first."""
        choices = [_choice(index, trace) for index, trace in enumerate(traces)]
        whole = {"object": "chat.completion", "choices": choices, "usage": usage(traces)}
        return _head(head) | whole | told(traces[0], ask.extension.trace)

    def stream(self, ask: Ask, head: Head) -> Stream:
        """The answer piece by piece."""
        return ChatStream(ask, head)

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""
        return openai_body(error)


@dataclass
class ChatStream:
    """The chunks of one reply."""

    ask: Ask
    head: Head
    said: set[int] = field(default_factory=set)
    """The choices of which something was said."""

    def start(self) -> Iterator[str]:
        """The role of each answer."""
        for choice in range(self.ask.choices):
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def text(self, choice: int, text: str) -> Iterator[str]:
        """A piece of an answer."""
        yield self._chunk(choice, {"content": text})

    def note(self, progress: dict[str, Any]) -> Iterator[str]:
        """A chunk without choices."""
        yield self._frame([], conductor=progress)

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:
        """The tool calls, and why the answer ends."""
        assert trace.completion is not None
        calls = _tool_calls(trace)
        if calls:
            yield self._chunk(choice, {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
        end = {"index": choice, "delta": {}, "logprobs": None, "finish_reason": trace.completion.finish_reason}
        yield self._frame([end], **told(trace, self.ask.extension.trace))

    def end(self, traces: Sequence[Trace]) -> Iterator[str]:
        """The usage, if it was asked for."""
        if self.ask.usage_in_stream:
            yield self._frame([], usage=usage(traces))
        yield DONE

    def fail(self, error: ApiError) -> Iterator[str]:
        """The error in place of a chunk."""
        yield sse(openai_body(error))

    def _chunk(self, choice: int, delta: dict[str, Any]) -> str:
        return self._frame([{"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _frame(self, choices: list[dict[str, Any]], **more: Any) -> str:
        empty = {"usage": None} if self.ask.usage_in_stream else {}
        return sse(_head(self.head) | {"object": "chat.completion.chunk", "choices": choices} | empty | more)


def _head(head: Head) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{head.number}",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "service_tier": "default",
    }


def _choice(index: int, trace: Trace) -> dict[str, Any]:
    assert trace.completion is not None
    calls = _tool_calls(trace)
    message: dict[str, Any] = {"role": "assistant", "content": trace.text or None, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    return {"index": index, "message": message, "logprobs": None, "finish_reason": trace.completion.finish_reason}


def _tool_calls(trace: Trace) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls_of(trace, "call")
    ]


def usage(traces: Sequence[Trace]) -> dict[str, Any]:
    """What was used in all, and the share of it that was orchestration."""
    whole, beside = used(traces), orchestration(traces)
    return {
        "prompt_tokens": whole.input_tokens,
        "completion_tokens": whole.output_tokens,
        "total_tokens": whole.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": whole.cached_tokens,
            "orchestration_tokens": beside.input_tokens,
        },
        "completion_tokens_details": {
            "reasoning_tokens": whole.reasoning_tokens,
            "orchestration_tokens": beside.output_tokens,
        },
        "conductor": breakdown(traces),
    }
