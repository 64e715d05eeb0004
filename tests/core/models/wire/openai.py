"""OpenAI's Chat Completions, as its service and those that imitate it write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .base import MASKED, SECRET, TORN, Failure, Said, Seen, Wire, WireServer

ERRORS: dict[str, tuple[int, str, str | None]] = {
    "unauthorized": (401, "Incorrect API key provided: " + SECRET, "invalid_api_key"),
    "masked-key": (401, f"Incorrect API key provided: {MASKED}. You can find your API key in the settings.", None),
    "torn-key": (401, f"No such key: '{TORN}'.", None),
    "forbidden": (403, "Your project has no access to this model.", None),
    "missing": (404, "The model does not exist or you do not have access to it.", "model_not_found"),
    "rate-limit": (429, "Rate limit reached for requests.", "rate_limit_exceeded"),
    "overloaded": (503, "The engine is currently overloaded.", None),
    "server-error": (500, "The server had an error while processing your request.", None),
    "context": (400, "This model's maximum context length is 8192 tokens.", "context_length_exceeded"),
    "bad-request": (400, "Unsupported value: 'temperature' does not support 3.", "unsupported_value"),
}


SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "reasoning_effort": "effort",
}
"""The service's names of the fields of `Sampling`."""


class OpenAIWire(WireServer):
    """`POST /v1/chat/completions`."""

    max_tokens = "max_completion_tokens"
    """The service's name of the output limit."""

    def read(self, wire: Wire) -> Seen:
        """Reads a request."""
        body = wire.body
        scenario = self.addressee(wire)
        messages = body["messages"]
        form = body.get("response_format") or {}
        names = SAMPLING | {self.max_tokens: "max_tokens"}
        return Seen(
            scenario=scenario,
            stream=bool(body.get("stream")),
            text=_text(next((m for m in reversed(messages) if m["role"] == "user"), None)),
            tool_result=_text(next((m for m in reversed(messages) if m["role"] == "tool"), None)),
            media=tuple(_media(messages)),
            schema=form.get("json_schema", {}).get("schema"),
            system=_text(next((m for m in messages if m["role"] == "system"), None)),
            tools=tuple(tool["function"]["name"] for tool in body.get("tools", ())),
            tool_choice=_choice(body.get("tool_choice", "")),
            sampling={ours: _value(body[theirs]) for theirs, ours in names.items() if theirs in body},
        )

    def addressee(self, wire: Wire) -> str:
        """The scenario."""
        return str(wire.body["model"])

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `chat.completion`."""
        message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
        if said.thought:
            message["reasoning_content"] = said.thought
        if said.calls:
            message["tool_calls"] = [_call(call) for call in said.calls]
        return _object(seen, "chat.completion", [{"index": 0, "message": message, **_end(said)}], said)

    def events(self, seen: Seen, said: Said) -> list[str]:
        """`chat.completion.chunk`s: deltas, the finish reason, the usage, `[DONE]`."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": said.thought}] if said.thought else []
        deltas += [{"content": piece} for piece in said.pieces]
        for index, (call_id, name, arguments) in enumerate(said.calls):
            head: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            halves = (arguments[:5], arguments[5:])
            deltas.append({"tool_calls": [{"index": index, **head}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": half}}]} for half in halves]
        choices: list[list[dict[str, Any]]] = [
            [{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas
        ]
        choices += [[{"index": 0, "delta": {}, **_end(said)}]]
        chunks = [_object(seen, "chat.completion.chunk", choice) for choice in choices]
        chunks.append(_object(seen, "chat.completion.chunk", [], said))
        return [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]

    def failure(self, scenario: str) -> Failure:
        """OpenAI's error object; the 401 quotes the key, as the real one does in part."""
        status, message, code = ERRORS[scenario]
        error = {"message": message, "type": "error", "param": None, "code": code}
        return Failure(status, {"error": error}, {"Retry-After": "7"} if scenario == "rate-limit" else {})

    def broken_event(self, scenario: str) -> str:
        """The error object, with the status as its code, as of vLLM and OpenRouter."""
        failure = self.failure(scenario)
        return f"data: {json.dumps({'error': {**failure.body['error'], 'code': failure.status}})}\n\n"


def _end(said: Said) -> dict[str, Any]:
    """The finish reason, and vLLM's field for the stop sequence."""
    return {"finish_reason": said.finish} | ({"stop_reason": said.stop_sequence} if said.stop_sequence else {})


def _object(seen: Seen, kind: str, choices: list[Any], said: Said | None = None) -> dict[str, Any]:
    made = {"id": "c1", "object": kind, "created": 1, "model": f"{seen.scenario}-2026", "choices": choices}
    return made | {"usage": None if said is None else _usage(said)}


def _usage(said: Said) -> dict[str, Any]:
    counts = said.counts
    return {
        "prompt_tokens": counts.input,
        "completion_tokens": counts.output,
        "total_tokens": counts.input + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }


def _call(call: tuple[str, str, str]) -> dict[str, Any]:
    call_id, name, arguments = call
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _choice(choice: str | dict[str, Any]) -> str:
    name: str = choice if isinstance(choice, str) else choice["function"]["name"]
    return name


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _text(message: dict[str, Any] | None) -> str:
    content = message["content"] if message else ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _media(messages: list[dict[str, Any]]) -> Iterator[str]:
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    for part in parts:
        if part["type"] == "image_url":
            url = part["image_url"]["url"]
            yield media_type(url) if url.startswith("data:") else "url"
        elif part["type"] == "file":
            yield media_type(part["file"]["file_data"])


def media_type(data_url: str) -> str:
    """`image/png` of `data:image/png;base64,...`; `ValueError` for anything else."""
    kind, comma, content = data_url.removeprefix("data:").partition(";base64,")
    if not comma or not content:
        raise ValueError(data_url)
    return kind
