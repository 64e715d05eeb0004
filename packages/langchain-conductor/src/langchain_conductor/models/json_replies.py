"""Requests replies in JSON from LangChain chat models and reads them, in the way that each model supports.

The JSON is the text of the reply, or the arguments of a tool call, where the model's `with_structured_output` uses one.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.utils.json import parse_json_markdown

from langchain_conductor.models.chat_wrappers import find_chat_models
from langchain_conductor.models.replies import core_completion, finish_reason, refusal_text
from rl_conductor.errors import BadResponseError, ReplyFormatError
from rl_conductor.integration import PLAN_FORMAT_NAME, response_format_of, vendor_safe_name
from rl_conductor.types import JsonFormat, Price


def request_json(chat: BaseChatModel, response_format: JsonFormat) -> Runnable[Any, Any]:
    """Returns `chat` with the vendor's option for JSON, without LangChain's parser, so that its tokens are streamed."""
    options = _parameters(chat)
    if response_format.json_schema is None:
        if "json_mode" not in str(options["method"].annotation if "method" in options else ""):
            return chat  # the model has no such option; the conversation asks for JSON
        schema: dict[str, Any] = {"title": vendor_safe_name(response_format.name), "type": "object"}
        return _without_parser(chat.with_structured_output(schema, method="json_mode"))
    if native_options := schema_options(chat, response_format):
        return chat.bind(**native_options)
    json_schema, strict = response_format.json_schema, response_format.is_strict
    if "strict" in options and options["method"].default == "json_schema":
        vendor_format = response_format_of(response_format)["json_schema"]
        json_schema, strict = vendor_format["schema"], vendor_format["strict"]
    schema = {**json_schema, "title": vendor_safe_name(response_format.name)}
    arguments = {"strict": strict} if "strict" in options else {}
    return _without_parser(chat.with_structured_output(schema, **arguments))


def schema_options(chat: BaseChatModel, response_format: JsonFormat) -> dict[str, Any]:
    """Returns the options for the schema of Claude's models that enforce one; empty for others.

    Anthropic's package would force a call of a tool instead, which newer models and all with `thinking` don't accept.
    """
    method = _parameters(chat).get("method")
    is_claude = chat._get_ls_params().get("ls_provider") == "anthropic"  # noqa: SLF001
    if not (is_claude and method and "json_schema" in str(method.annotation)):
        return {}
    if response_format.json_schema is None or not (chat.profile or {}).get("structured_output"):
        return {}
    schema = {**response_format.json_schema, "title": vendor_safe_name(response_format.name)}
    try:
        structured = chat.with_structured_output(schema, method="json_schema")
    except (ValueError, AssertionError):  # the vendor's library can't convert every schema
        return {}
    _, options = find_chat_models(_without_parser(structured))[0]
    return options


class JsonPieces:
    """Extracts the JSON from a streamed reply, piece by piece; nothing of a reply that begins with other text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._has_other_text = False

    @property
    def text(self) -> str:
        """The JSON so far."""
        return "".join(self._pieces)

    def add(self, message: Any) -> str:
        """Returns the JSON in one chunk, which is part of the text or of the arguments of a tool call."""
        if not isinstance(message, AIMessageChunk):  # a whole message or a parsed value
            return ""
        piece = "".join(call["args"] or "" for call in message.tool_call_chunks) or str(message.text)
        if not self._pieces and piece.strip():
            self._has_other_text = self._has_other_text or not piece.lstrip().startswith(("{", "["))
        if self._has_other_text or not (self._pieces or piece.strip()):
            return ""
        self._pieces.append(piece)
        return piece


def json_reply(output: Any, response_format: JsonFormat, *, model: str, price: Price | None) -> AIMessage:
    """Returns the reply with its JSON as the text; a plan as it was written, because the planner parses more than JSON.

    Raises:
        ReplyFormatError: the reply contains no JSON.
        BadResponseError: there is no reply, because it does not match the schema.
    """
    if not isinstance(output, BaseMessage):  # a model with a `with_structured_output` of its own
        if output is None:
            raise BadResponseError(f"{model}: the reply is not the requested JSON: it does not match", model=model)
        return AIMessage(_dump(output))
    assert isinstance(output, AIMessage)
    if refusal_text(output) or finish_reason(output) == "content_filter":
        return output
    if finish_reason(output) == "length":  # LangChain's parser would close the open brackets
        return with_text(output, _raw_json(output))
    try:
        value = output.tool_calls[0]["args"] if output.tool_calls else parse_json_markdown(str(output.text))
    except ValueError as error:
        if response_format.name == PLAN_FORMAT_NAME:
            return output
        message = f"{model}: the reply is not the requested JSON: {error}"
        completion = core_completion(output, model=model, price=price)
        raise ReplyFormatError(message, model=model, completion=completion) from None
    return with_text(output, _dump(value))


def with_text(reply: AIMessage, text: str) -> AIMessage:
    """Copies `reply` with `text`, without the tool call that a vendor may have used to produce it."""
    metadata = {name: entry for name, entry in reply.response_metadata.items() if name != "model_provider"}
    return AIMessage(text, usage_metadata=reply.usage_metadata, response_metadata=metadata)


def join_chunks(outputs: Sequence[Any]) -> Any:
    """Joins the chunks of a stream; a model that can't stream sends one whole message."""
    chunks = [output for output in outputs if isinstance(output, AIMessageChunk)]
    return chunks[0] + chunks[1:] if chunks else outputs[-1]


def truncated_reply(error: Exception) -> AIMessage | None:
    """Returns the reply that OpenAI's client refuses to parse because it was truncated; `None` for other errors."""
    openai = sys.modules.get("openai")  # an extra
    if openai is None or not isinstance(error, openai.LengthFinishReasonError):
        return None
    usage = error.completion.usage
    counts = usage and UsageMetadata(
        input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=usage.total_tokens
    )
    text = error.completion.choices[0].message.content or ""
    metadata = {"finish_reason": "length", "model_name": error.completion.model}
    return AIMessage(text, usage_metadata=counts, response_metadata=metadata)


def _raw_json(reply: AIMessage) -> str:
    """Returns the JSON of a truncated reply as the model wrote it."""
    if isinstance(reply, AIMessageChunk) and reply.tool_call_chunks:
        return reply.tool_call_chunks[0]["args"] or ""
    if reply.invalid_tool_calls:
        return reply.invalid_tool_calls[0]["args"] or ""
    return _dump(reply.tool_calls[0]["args"]) if reply.tool_calls else str(reply.text)


def _parameters(chat: BaseChatModel) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(chat.with_structured_output).parameters


def _without_parser(structured: Runnable[Any, Any]) -> Runnable[Any, Any]:
    if isinstance(structured, RunnableSequence) and find_chat_models(structured.first):
        return structured.first
    return structured


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
