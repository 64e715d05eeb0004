"""Checks that a reply has an answer, and the format and the tool call that its request requires.

Not every vendor enforces them.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json

from rl_conductor.errors import BadResponseError, OutputLimitError, ReplyFormatError
from rl_conductor.models.replies.call_ids import with_unique_call_ids
from rl_conductor.types import Completion, JsonFormat, ReasoningPart, Request

FENCED = re.compile(r"\s*```(?:json)?[^\S\n]*\n(?P<content>.*)```\s*", re.DOTALL | re.IGNORECASE)
"""JSON in a Markdown code block. Parsers for models' replies accept it, so it is worth no second call."""


def checked(completion: Completion, request: Request) -> Completion:
    """Returns `completion` if it has text or a tool call, with an id of its own for each call.

    Without either it is accepted if `request` ends with the results of tools, to which a model may have nothing to add.

    Raises:
        OutputLimitError: it has neither, because the model used up its output tokens.
        BadResponseError: it has neither for another reason.
    """
    if completion.message.tool_calls or completion.text.strip():
        return with_unique_call_ids(completion, request)
    is_after_tools = request.last_calls is not None
    if is_after_tools and completion.finish_reason == "stop":
        return completion
    model = completion.model
    if completion.finish_reason == "length":
        reason = "it ran out of output tokens before it wrote any answer; raise max_tokens"
        raise OutputLimitError(f"{model}: {reason}", model=model, usage=completion.usage)
    if completion.finish_reason == "content_filter":
        reason = "the vendor's content filter withheld the answer"
        raise BadResponseError(f"{model}: {reason}", model=model, retryable=False, usage=completion.usage)
    raise BadResponseError(f"{model}: {_why_empty(completion)}", model=model, usage=completion.usage)


def _why_empty(completion: Completion) -> str:
    if completion.dropped_calls:
        return "it called a tool although it could not, and wrote no answer"
    if any(isinstance(part, ReasoningPart) for part in completion.message.content):
        return "it ended after its reasoning, without an answer"
    return "the reply is empty"


def check_format(completion: Completion, request: Request) -> Completion:
    """Returns `completion` if it has the format, or the tool call, that `request` requires.

    A text that was cut off, filtered or refused is returned as it is, because its other fields say so.

    Raises:
        ReplyFormatError: it is not JSON, violates a strict schema, or lacks the tool call or its arguments.
    """
    reason = _invalid_call(completion, request)
    if reason is None and not completion.is_refusal and completion.finish_reason not in ("length", "content_filter"):
        reason = _missing_call(completion, request) or _wrong_format(completion, request)
    if reason is not None:
        raise ReplyFormatError(f"{completion.model}: {reason}", model=completion.model, completion=completion)
    return completion


def _invalid_call(completion: Completion, request: Request) -> str | None:
    """Returns why the arguments of a required call are invalid; frameworks would make an object without values of them.

    Calls that are not required go to the caller, whose tools can answer with an error.
    """
    if not request.requires_call:
        return None
    invalid = next((call.name for call in completion.message.tool_calls if not _is_object(call.arguments)), None)
    if invalid is None:
        return None
    cause = "; it reached max_tokens before their end" if completion.finish_reason == "length" else ""
    return f"the arguments of its call of {invalid!r} are no JSON object{cause}"


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(from_json(arguments or "{}"), dict)
    except ValueError:
        return False


def _missing_call(completion: Completion, request: Request) -> str | None:
    if not request.requires_call:
        return None
    choice = request.tool_choice
    called = [call.name for call in completion.message.tool_calls]
    is_met = bool(called) if choice == "required" else choice in called
    return None if is_met else f"the reply has no call of a tool, which tool_choice {choice!r} requires"


def _wrong_format(completion: Completion, request: Request) -> str | None:
    form = request.response_format
    if not isinstance(form, JsonFormat) or completion.message.tool_calls:
        return None
    fenced = FENCED.fullmatch(completion.text)
    try:
        value = from_json(fenced["content"] if fenced else completion.text)
    except ValueError as error:
        return f"the reply is not JSON: {error}"
    if form.json_schema is None:
        return None if isinstance(value, dict) else "the reply is JSON, but no object"
    reason = _violation(value, form.json_schema) if form.is_strict else None
    return reason and f"the reply does not match the JSON schema: {reason}"


def _violation(value: Any, schema: dict[str, Any]) -> str | None:
    from rl_conductor.models.replies.json_schema import schema_violation  # slow to import  # noqa: PLC0415

    return schema_violation(value, schema)
