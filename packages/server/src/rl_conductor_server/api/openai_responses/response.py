"""The body of a response of the Responses API, with an answer or without. Pure."""

from __future__ import annotations

from typing import Any

from rl_conductor.types import JsonFormat, ResponseFormat
from rl_conductor_server.api.adapter import ResponseHeader
from rl_conductor_server.api.openai_responses.ids import response_id
from rl_conductor_server.api.openai_responses.items import incomplete_reason, output_items
from rl_conductor_server.api.results import Results
from rl_conductor_server.errors import ApiError
from rl_conductor_server.parsed_request import ParsedRequest, ResponseState

FAILURES = {
    "upstream_rate_limit": "rate_limit_exceeded",
    "upstream_error": "server_error",
    "internal_error": "server_error",
}
"""OpenAI's codes of failed responses; the others are those of the errors."""


def answered_body(parsed: ParsedRequest, header: ResponseHeader, results: Results) -> dict[str, Any]:
    """Builds the body of a response with an answer."""
    return _common_fields(parsed, header) | _answer_fields(results) | results.metadata(parsed.extension.trace)


def unanswered_body(
    parsed: ParsedRequest, header: ResponseHeader, status: str, error: ApiError | None = None
) -> dict[str, Any]:
    """Builds the body of a response that has no answer, or none yet."""
    reason = None if error is None else {"code": FAILURES.get(error.code, error.code), "message": str(error)}
    return _common_fields(parsed, header) | {"status": status, "error": reason}


def _common_fields(parsed: ParsedRequest, header: ResponseHeader) -> dict[str, Any]:
    """The fields that are known before there is an answer."""
    request, state = parsed.request, parsed.state or ResponseState()
    previous = state.previous
    choice = request.tool_choice
    function_choice = {"type": "function", "name": choice}
    return {
        "id": response_id(header.run),
        "object": "response",
        "created_at": header.created,
        "status": "in_progress",
        "model": header.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": state.instructions,
        "previous_response_id": None if previous is None else response_id(previous),
        "conversation": None if state.conversation is None else {"id": state.conversation},
        "background": state.background,
        "metadata": parsed.labels,
        "parallel_tool_calls": request.parallel_tool_calls,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "max_output_tokens": request.sampling.max_tokens,
        "tool_choice": choice if choice in ("auto", "none", "required") else function_choice,
        "tools": [
            {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
            | {"strict": bool(tool.strict)}
            for tool in request.tools
        ],
        "text": {"format": _text_format(request.response_format), "verbosity": "medium"},
        "reasoning": {"effort": parsed.effort, "summary": None},
        "completed_at": None,
        "max_tool_calls": None,
        "top_logprobs": 0,
        "service_tier": "default",
        "user": parsed.labels.get("user"),
        "safety_identifier": parsed.labels.get("safety_identifier"),
        "store": parsed.keep,
        "truncation": "auto" if state.may_truncate else "disabled",
    }


def _text_format(form: ResponseFormat | None) -> dict[str, Any]:
    if not isinstance(form, JsonFormat):
        return {"type": "text"}
    if form.json_schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": form.name, "schema": form.json_schema, "strict": form.strict}


def _answer_fields(results: Results) -> dict[str, Any]:
    """The fields that depend on the answer."""
    (trace,) = results.traces
    reason = incomplete_reason(trace)
    return {
        "status": "incomplete" if reason else "completed",
        "completed_at": None if reason else int(trace.created.timestamp() + trace.seconds),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output_items(trace),
        "usage": format_usage(results),
    }


def format_usage(results: Results) -> dict[str, Any]:
    """Formats the total usage and the part of it that orchestration used."""
    usage, orchestration = results.usage, results.orchestration
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "orchestration_tokens": orchestration.input_tokens,
        },
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "orchestration_tokens": orchestration.output_tokens,
        },
        "conductor": results.breakdown,
    }
