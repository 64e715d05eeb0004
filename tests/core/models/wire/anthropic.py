"""Anthropic's Messages API, as its service writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .base import MASKED, SECRET, TORN, Failure, Said, Seen, Wire, WireServer

ERRORS = {
    "unauthorized": (401, "authentication_error", "invalid x-api-key " + SECRET),
    "masked-key": (401, "authentication_error", f"invalid x-api-key {MASKED}"),
    "torn-key": (401, "authentication_error", f"invalid x-api-key '{TORN}'"),
    "forbidden": (403, "permission_error", "Your API key does not have permission to use the specified resource."),
    "missing": (404, "not_found_error", "model: missing"),
    "rate-limit": (429, "rate_limit_error", "This request would exceed your organization's rate limit."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "server-error": (500, "api_error", "Internal server error"),
    "context": (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
    "bad-request": (400, "invalid_request_error", "temperature: Extra inputs are not permitted"),
}

FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class AnthropicWire(WireServer):
    """`POST /v1/messages`."""

    def read(self, wire: Wire) -> Seen:
        """Reads a request; one that the real API would refuse fails the test."""
        body = wire.body
        scenario, stream = self.addressee(wire)
        assert body["max_tokens"] > 0
        users = [message["content"] for message in body["messages"] if message["role"] == "user"]
        results = [block for block in users[-1] if block["type"] == "tool_result"]
        return Seen(
            scenario=scenario,
            stream=stream,
            text=_text(users[-1]),
            tool_result=_text(results[-1]["content"]) if results else "",
            media=tuple(kind for blocks in users for kind in _media(blocks)),
            schema=body.get("output_config", {}).get("format", {}).get("schema"),
            system=_text(body.get("system", [])),
            tools=tuple(tool["name"] for tool in body.get("tools", ())),
            tool_choice=_choice(body.get("tool_choice")),
            sampling=_sampling(body),
        )

    def addressee(self, wire: Wire) -> tuple[str, bool]:
        """The scenario, and whether the reply is streamed; the address and the key must be right."""
        assert wire.path == "/v1/messages"
        assert wire.headers["authorization"] == f"Bearer {SECRET}"
        return wire.body["model"], bool(wire.body.get("stream"))

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `message`."""
        return _message(seen, said) | {
            "content": list(_blocks(said)),
            **_end(said),
            "usage": _input_usage(said) | _output_usage(said),
        }

    def events(self, seen: Seen, said: Said) -> list[str]:
        """A `message_start`, each block's start, deltas and stop, the finish reason and the usage, the end."""
        frames = [event("message_start", message=_message(seen, said)), event("ping")]
        for index, block in enumerate(_blocks(said)):
            empty, deltas = _deltas(block, said)
            frames.append(event("content_block_start", index=index, content_block=empty))
            frames += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
            frames.append(event("content_block_stop", index=index))
        frames.append(event("message_delta", delta=_end(said), usage=_output_usage(said)))
        return [*frames, event("message_stop")]

    def failure(self, scenario: str) -> Failure:
        """Anthropic's error object; the 401 quotes the key, to see that it is not passed on."""
        status, kind, message = ERRORS[scenario]
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
        return Failure(status, body, {"Retry-After": "7"} if scenario == "rate-limit" else {})

    def broken_event(self, scenario: str) -> str:
        """An `error` event."""
        return f"event: error\ndata: {json.dumps(self.failure(scenario).body)}\n\n"


def event(kind: str, **fields: Any) -> str:
    """A frame of the stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _end(said: Said) -> dict[str, Any]:
    reason = "stop_sequence" if said.stop_sequence else FINISH[said.finish]
    return {"stop_reason": reason, "stop_sequence": said.stop_sequence}


def _message(seen: Seen, said: Said) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{seen.scenario}-2026",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _input_usage(said) | {"output_tokens": 1},
    }


def _input_usage(said: Said) -> dict[str, Any]:
    """The API counts cached and cache-writing tokens beside the fresh ones; ten of ours are such a write."""
    written = 10 if said.counts.cached else 0
    return {
        "input_tokens": said.counts.input - said.counts.cached - written,
        "cache_read_input_tokens": said.counts.cached,
        "cache_creation_input_tokens": written,
    }


def _output_usage(said: Said) -> dict[str, Any]:
    details = {"thinking_tokens": said.counts.reasoning}
    return {"output_tokens": said.counts.output, "output_tokens_details": details}


def _blocks(said: Said) -> Iterator[dict[str, Any]]:
    if said.thought:
        yield {"type": "thinking", "thinking": said.thought, "signature": "c2lnbmVk"}
    if said.text:
        yield {"type": "text", "text": said.text}
    for call_id, name, arguments in said.calls:
        yield {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}


def _deltas(block: dict[str, Any], said: Said) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it."""
    match block["type"]:
        case "thinking":
            thought = {"type": "thinking_delta", "thinking": block["thinking"]}
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [thought, signature]
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in said.pieces]
        case _:
            written = json.dumps(block["input"])
            halves = ("", written[:5], written[5:])
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": half} for half in halves]


def _choice(choice: dict[str, Any] | None) -> str:
    if choice is None:
        return ""
    return {"any": "required", "tool": choice.get("name")}.get(choice["type"]) or choice["type"]


def _sampling(body: dict[str, Any]) -> dict[str, Any]:
    sampling: dict[str, Any] = {name: body[name] for name in ("temperature", "top_p", "max_tokens") if name in body}
    if "stop_sequences" in body:
        sampling["stop"] = tuple(body["stop_sequences"])
    if "effort" in body.get("output_config", {}):
        sampling["effort"] = body["output_config"]["effort"]
    return sampling


def _text(content: Any) -> str:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _media(blocks: list[dict[str, Any]]) -> Iterator[str]:
    for block in blocks:
        if block["type"] in ("image", "document"):
            yield block["source"].get("media_type", "url")
