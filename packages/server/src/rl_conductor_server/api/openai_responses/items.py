"""Formats input and answers as items of the Responses API, and reads stored ones. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import RootModel

from rl_conductor.trace.trace import Trace
from rl_conductor.types import ToolCall
from rl_conductor_server.api.openai_responses.schema import Item, MessageItem
from rl_conductor_server.runs.tool_continuation import tool_calls_of
from rl_conductor_server.store import StoredTurn, decode
from rl_conductor_server.store.runs.run_id import ITEM_PREFIXES, message_id, random_part

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""OpenAI's reasons of incomplete answers, by the finish reason."""


def output_items(trace: Trace) -> list[dict[str, Any]]:
    """Formats an answer as items; if it was cut off, the last one is incomplete."""
    part = refusal_part if trace.completion and trace.completion.is_refusal else text_part
    text = [message_item(trace.id, part(trace.text))] if trace.text else []
    items = text + [_call_item(call) for call in tool_calls_of(trace, "call")]
    if items and incomplete_reason(trace) is not None:
        items[-1]["status"] = "incomplete"
    return items


def incomplete_reason(trace: Trace) -> str | None:
    """Returns why an answer is incomplete; `None` if it is complete, as a refusal always is."""
    completion = trace.completion
    return None if completion is None or completion.is_refusal else INCOMPLETE.get(completion.finish_reason)


def message_item(run: str, part: dict[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {"status": "in_progress", "content": []}
    if part is not None:
        content = {"status": "completed", "content": [part]}
    return {"type": "message", "id": message_id(run), "role": "assistant"} | content


def input_item(item: Item, suffix: str, *, keep_id: bool = True) -> dict[str, Any]:
    """Formats an item of the input; it gets an id with this suffix if it has none, or `keep_id` is false."""
    body: dict[str, Any] = item.model_dump(mode="json", exclude_none=True)
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        text = {"type": "input_text", "text": item.content}
        body["content"] = [text_part(item.content) if item.role == "assistant" else text]
    if not keep_id or "id" not in body:
        body["id"] = f"{ITEM_PREFIXES.get(body['type'], 'msg')}_{suffix}"
    return body | {"status": "completed"}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": call.id.replace("call_", "fc_", 1),
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


class StoredItems(RootModel[str | tuple[Item, ...]]):
    """The input of a stored request, or the output of its response."""

    @property
    def items(self) -> tuple[Item, ...]:
        """A text as an item, too."""
        return (MessageItem(role="user", content=self.root),) if isinstance(self.root, str) else self.root


def input_items(turn: StoredTurn, *, keep_ids: bool = True) -> list[dict[str, Any]]:
    """Formats the input of a stored response, without the turns before it, as items with ids.

    Without `keep_ids`, items with ids of the client get others: another item of a conversation may have them.
    """
    items = decode(StoredItems, turn.input, run=turn.run).items
    suffix = random_part(turn.run)
    return [input_item(item, f"{suffix}_{number}", keep_id=keep_ids) for number, item in enumerate(items)]
