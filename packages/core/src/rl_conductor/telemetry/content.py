"""Formats message content for spans, which carry it only if enabled. Images and files are reduced to their type."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from rl_conductor.types import Completion, ContentPart, FilePart, ImagePart, Message

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ON_SPANS = {"true", "span_only", "span_and_event"}


def is_enabled() -> bool:
    """Returns whether the environment enables message content on spans."""
    return os.environ.get(CAPTURE, "").strip().lower() in ON_SPANS


def input_messages(messages: Sequence[Message]) -> str:
    """Formats the conversation that a model was sent as JSON."""
    return json.dumps([_message(message) for message in messages], ensure_ascii=False)


def output_messages(completion: Completion) -> str:
    """Formats a model's reply as JSON."""
    reason = completion.finish_reason.removesuffix("s") if completion.message.tool_calls else completion.finish_reason
    return json.dumps([_message(completion.message) | {"finish_reason": reason}], ensure_ascii=False)


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        parts = [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}]
    else:
        parts = [_part(part) for part in message.content]
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts + calls}


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, ImagePart | FilePart):
        return {"type": part.type, "mime_type": part.media_type}
    return {"type": part.type, "content": part.text}
