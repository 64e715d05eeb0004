"""Encodes the stream of a response of the Responses API. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.adapter import ResponseHeader
from rl_conductor_server.api.openai_responses.items import (
    incomplete_reason,
    message_item,
    output_items,
    refusal_part,
    text_part,
)
from rl_conductor_server.api.openai_responses.response import answered_body, unanswered_body
from rl_conductor_server.api.results import Results
from rl_conductor_server.api.sse import sse_event
from rl_conductor_server.errors import ApiError
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.runs.handle import CANCELLED
from rl_conductor_server.store.runs.run_id import message_id


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
        started = unanswered_body(self.parsed, self.header, "in_progress")
        first = unanswered_body(self.parsed, self.header, "queued") if self.parsed.is_background else started
        yield self._event("response.created", response=first)
        if self.parsed.is_background:
            yield self._event("response.queued", response=first)
        yield self._event("response.in_progress", response=started)

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
        response = answered_body(self.parsed, self.header, Results((trace,)))
        yield self._event(f"response.{response['status']}", response=response)

    def end(self, results: Results) -> Iterator[str]:  # noqa: ARG002
        return iter(())

    def error(self, error: ApiError) -> Iterator[str]:
        status = "cancelled" if error.code == CANCELLED else "failed"
        reason = None if status == "cancelled" else error
        yield from self.failed(unanswered_body(self.parsed, self.header, status, reason))

    def failed(self, response: dict[str, Any]) -> Iterator[str]:
        """Encodes the end of a response without an answer; unless it was cancelled, as an error at first.

        Several frameworks don't read `response.failed`. OpenAI's SDKs raise an exception for the nested error, which
        OpenAI sends; the other fields are those of the event in its documentation.
        """
        if response["error"] is not None:
            error = response["error"] | {"param": None}
            yield self._event("error", **error, error=error | {"type": error["code"]})
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
