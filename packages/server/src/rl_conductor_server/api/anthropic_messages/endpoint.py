"""Anthropic's Messages: our answers in its words, whole and streamed. Pure translation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rl_conductor.models.base import arguments_of
from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.anthropic_messages.schema import MessagesBody
from rl_conductor_server.api.metadata import breakdown, told, used
from rl_conductor_server.errors import ApiError, anthropic_body
from rl_conductor_server.protocol import Ask, Head, Stream, read_body, sse
from rl_conductor_server.runs.tool_continuation import calls_of

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class Messages:
    """`POST /v1/messages`."""

    name = "messages"

    def read(self, body: bytes) -> Ask:
        """What is asked."""
        return read_body(MessagesBody, body).ask()

    def reply(self, ask: Ask, head: Head, traces: Sequence[Trace]) -> dict[str, Any]:
        """The whole answer."""
        (trace,) = traces
        text = [{"type": "text", "text": trace.text}] if trace.text else []
        whole = {"content": text + _tool_uses(trace), "usage": usage(traces)}
        return _head(head) | whole | _stop(trace) | told(trace, ask.extension.trace)

    def stream(self, ask: Ask, head: Head) -> Stream:
        """The answer piece by piece."""
        return MessageStream(ask, head)

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""
        return anthropic_body(error)


@dataclass
class MessageStream:
    """The events of one reply."""

    ask: Ask
    head: Head
    blocks: int = 0
    """How many blocks were begun."""

    def start(self) -> Iterator[str]:
        """The message, still empty: what it will have used is told at its end."""
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message=_head(self.head) | empty | {"usage": usage(())})

    def text(self, choice: int, text: str) -> Iterator[str]:  # noqa: ARG002
        """A piece of the answer."""
        if not self.blocks:
            yield self._begin({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def note(self, progress: dict[str, Any]) -> Iterator[str]:
        """A ping that has something to say."""
        yield _event("ping", conductor=progress)

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:  # noqa: ARG002
        """The tool calls, and why the answer ends."""
        if self.blocks:
            yield self._end()
        for call in _tool_uses(trace):
            yield self._begin(call | {"input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(call["input"])})
            yield self._end()
        more = told(trace, self.ask.extension.trace)
        yield _event("message_delta", delta=_stop(trace), usage=usage((trace,)), **more)

    def end(self, traces: Sequence[Trace]) -> Iterator[str]:  # noqa: ARG002
        """The end."""
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterator[str]:
        """The error, as an event of its own."""
        yield sse(anthropic_body(error), event="error")

    def _begin(self, block: dict[str, Any]) -> str:
        self.blocks += 1
        return _event("content_block_start", index=self.blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self.blocks - 1, delta=delta)

    def _end(self) -> str:
        return _event("content_block_stop", index=self.blocks - 1)


def _event(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, event=kind)


def _head(head: Head) -> dict[str, Any]:
    return {"id": f"msg_{head.number}", "type": "message", "role": "assistant", "model": head.model}


def _stop(trace: Trace) -> dict[str, Any]:
    assert trace.completion is not None
    return {"stop_reason": STOPS[trace.completion.finish_reason], "stop_sequence": None}


def _tool_uses(trace: Trace) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)}
        for call in calls_of(trace, "toolu")
    ]


def usage(traces: Sequence[Trace]) -> dict[str, Any]:
    """What was used in all; Anthropic counts cached tokens beside the others, not among them."""
    whole = used(traces)
    return {
        "input_tokens": whole.input_tokens - whole.cached_tokens - whole.cache_write_tokens,
        "cache_read_input_tokens": whole.cached_tokens,
        "cache_creation_input_tokens": whole.cache_write_tokens,
        "output_tokens": whole.output_tokens,
        "conductor": breakdown(traces),
    }
