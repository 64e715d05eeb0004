"""OpenAI's Responses: our answers in its words, whole and streamed. Pure translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_conductor.trace.trace import Trace
from rl_conductor.types import ToolCall
from rl_conductor_server.api.metadata import breakdown, orchestration, told, used
from rl_conductor_server.api.openai_responses.schema import ResponsesBody
from rl_conductor_server.errors import ApiError, openai_body
from rl_conductor_server.protocol import Ask, Head, Stream, read_body, sse
from rl_conductor_server.runs.tool_continuation import calls_of

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`."""

    name = "responses"

    def read(self, body: bytes) -> Ask:
        """What is asked."""
        return read_body(ResponsesBody, body).ask()

    def reply(self, ask: Ask, head: Head, traces: Sequence[Trace]) -> dict[str, Any]:
        """The whole answer."""
        (trace,) = traces
        return _response(ask, head) | _ended(head, trace) | told(trace, ask.extension.trace)

    def stream(self, ask: Ask, head: Head) -> Stream:
        """The answer piece by piece."""
        return ResponseStream(ask, head)

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""
        return openai_body(error)


@dataclass
class ResponseStream:
    """The events of one reply."""

    ask: Ask
    head: Head
    said: list[str] = field(default_factory=list)
    sent: int = 0
    """How many events were sent."""

    def start(self) -> Iterator[str]:
        """The response, still empty."""
        empty = _response(self.ask, self.head)
        yield self._event("response.created", response=empty)
        yield self._event("response.in_progress", response=empty)

    def text(self, choice: int, text: str) -> Iterator[str]:  # noqa: ARG002
        """A piece of the answer."""
        if not self.said:
            item = _message(self.head, None)
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **self._place, part=_text(""))
        self.said.append(text)
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def note(self, progress: dict[str, Any]) -> Iterator[str]:
        """An event of our own."""
        yield self._event("conductor.progress", conductor=progress)

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:  # noqa: ARG002
        """The end of the text, the tool calls, and the whole."""
        if self.said:
            text = "".join(self.said)
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=_text(text))
            yield self._event("response.output_item.done", output_index=0, item=_message(self.head, text))
        for index, call in enumerate(calls_of(trace, "call"), start=int(bool(self.said))):
            yield from self._call(index, call)
        whole = _response(self.ask, self.head) | _ended(self.head, trace) | told(trace, self.ask.extension.trace)
        yield self._event(f"response.{whole['status']}", response=whole)

    def end(self, traces: Sequence[Trace]) -> Iterator[str]:  # noqa: ARG002
        """Nothing more."""
        return iter(())

    def fail(self, error: ApiError) -> Iterator[str]:
        """The response, failed."""
        failed = {"status": "failed", "error": {"code": "server_error", "message": str(error)}}
        yield self._event("response.failed", response=_response(self.ask, self.head) | failed)

    def _call(self, index: int, call: ToolCall) -> Iterator[str]:
        item = _function_call(call)
        place = {"output_index": index, "item_id": item["id"]}
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
        yield self._event("response.output_item.done", output_index=index, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.head.number}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> str:
        self.sent += 1
        return sse({"type": kind, "sequence_number": self.sent - 1, **fields}, event=kind)


def _response(ask: Ask, head: Head) -> dict[str, Any]:
    """What is known before there is an answer."""
    request = ask.request
    choice = request.tool_choice
    named = {"type": "function", "name": choice}
    return {
        "id": f"resp_{head.number}",
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "model": head.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": ask.labels,
        "parallel_tool_calls": request.parallel_tool_calls,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_output_tokens": request.sampling.max_tokens,
        "tool_choice": choice if choice in ("auto", "none", "required") else named,
        "tools": [
            {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
            | {"strict": False}
            for tool in request.tools
        ],
        "store": ask.keep,
    }


def _ended(head: Head, trace: Trace) -> dict[str, Any]:
    """What is known once there is one."""
    assert trace.completion is not None
    text = [_message(head, trace.text)] if trace.text else []
    why = INCOMPLETE.get(trace.completion.finish_reason)
    return {
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "output": text + [_function_call(call) for call in calls_of(trace, "call")],
        "usage": usage(trace),
    }


def _message(head: Head, text: str | None) -> dict[str, Any]:
    done = (
        {"status": "in_progress", "content": []} if text is None else {"status": "completed", "content": [_text(text)]}
    )
    return {"type": "message", "id": f"msg_{head.number}", "role": "assistant"} | done


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _function_call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": call.id.replace("call_", "fc_", 1),
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def usage(trace: Trace) -> dict[str, Any]:
    """What was used in all, and the share of it that was orchestration."""
    whole, beside = used([trace]), orchestration([trace])
    return {
        "input_tokens": whole.input_tokens,
        "output_tokens": whole.output_tokens,
        "total_tokens": whole.total_tokens,
        "input_tokens_details": {
            "cached_tokens": whole.cached_tokens,
            "cache_write_tokens": 0,
            "orchestration_tokens": beside.input_tokens,
        },
        "output_tokens_details": {
            "reasoning_tokens": whole.reasoning_tokens,
            "orchestration_tokens": beside.output_tokens,
        },
        "conductor": breakdown([trace]),
    }
