"""Google's `generateContent`, as its Gemini API writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .base import MASKED, SECRET, TORN, Failure, Said, Seen, Wire, WireServer

ERRORS = {
    "unauthorized": (401, "UNAUTHENTICATED", "Request had invalid authentication credentials: " + SECRET),
    "masked-key": (401, "UNAUTHENTICATED", f"API key {MASKED} not valid."),
    "torn-key": (401, "UNAUTHENTICATED", f"API key '{TORN}' not valid."),
    "forbidden": (403, "PERMISSION_DENIED", "The caller does not have permission"),
    "missing": (404, "NOT_FOUND", "models/missing is not found for API version v1"),
    "rate-limit": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "server-error": (500, "INTERNAL", "An internal error has occurred."),
    "context": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1250000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "bad-request": (400, "INVALID_ARGUMENT", "Unable to submit request because temperature must be at most 2."),
}

RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}

FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}

PATH = re.compile(r"/v1/models/([^:]+):(generateContent|streamGenerateContent\?alt=sse)")


class GoogleWire(WireServer):
    """`POST /v1/models/...:generateContent` and `:streamGenerateContent?alt=sse`."""

    def read(self, wire: Wire) -> Seen:
        """Reads a request; one that the real API would refuse fails the test."""
        scenario, stream = self.addressee(wire)
        config = wire.body.get("generationConfig", {})
        turns = wire.body["contents"]
        assert {turn["role"] for turn in turns} <= {"user", "model"}
        users = [turn["parts"] for turn in turns if turn["role"] == "user"]
        results = [part["functionResponse"] for part in users[-1] if "functionResponse" in part]
        return Seen(
            scenario=scenario,
            stream=stream,
            text="".join(part.get("text", "") for part in users[-1]),
            tool_result=results[-1]["response"].get("output", "") if results else "",
            media=tuple(kind for parts in users for kind in _media(parts)),
            schema=config.get("responseJsonSchema"),
            system="".join(part["text"] for part in wire.body.get("systemInstruction", {}).get("parts", ())),
            tools=tuple(tool["name"] for tools in wire.body.get("tools", ()) for tool in tools["functionDeclarations"]),
            tool_choice=_choice(wire.body),
            sampling=_sampling(config),
        )

    def addressee(self, wire: Wire) -> tuple[str, bool]:
        """The scenario, and whether the reply is streamed; the address and the key must be right."""
        path = PATH.fullmatch(wire.path)
        assert path
        assert wire.headers["x-goog-api-key"] == SECRET
        return path[1], path[2].startswith("stream")

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `GenerateContentResponse`."""
        return _response(seen, list(_parts(said, (said.text,))), said)

    def events(self, seen: Seen, said: Said) -> list[str]:
        """The same in pieces, of which the last holds the finish reason and the usage."""
        pieces = [_response(seen, [part]) for part in _parts(said, said.pieces)]
        return [f"data: {json.dumps(response)}\r\n\r\n" for response in (*pieces, _response(seen, [], said))]

    def failure(self, scenario: str) -> Failure:
        """Google's error object, which holds the wait too; the 401 quotes the key, to see that it is not passed on."""
        status, name, message = ERRORS[scenario]
        details = [RETRY_INFO] if scenario == "rate-limit" else []
        return Failure(status, {"error": {"code": status, "message": message, "status": name, "details": details}})


def _response(seen: Seen, parts: list[dict[str, Any]], said: Said | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    if said is not None:
        candidate["finishReason"] = FINISH[said.finish]
    usage = {} if said is None else {"usageMetadata": _usage(said)}
    return {"candidates": [candidate], "modelVersion": f"{seen.scenario}-2026", "responseId": "r1", **usage}


def _usage(said: Said) -> dict[str, int]:
    counts = said.counts
    return {
        "promptTokenCount": counts.input,
        "cachedContentTokenCount": counts.cached,
        "candidatesTokenCount": counts.output - counts.reasoning,
        "thoughtsTokenCount": counts.reasoning,
        "totalTokenCount": counts.input + counts.output,
    }


def _parts(said: Said, pieces: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if said.thought:
        yield {"text": said.thought, "thought": True}
    for piece in pieces:
        if piece:
            yield {"text": piece}
    for index, (_, name, arguments) in enumerate(said.calls):
        call = {"functionCall": {"name": name, "args": json.loads(arguments)}}
        yield call if index else call | {"thoughtSignature": "c2lnbmVk"}


def _choice(body: dict[str, Any]) -> str:
    calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
    (named,) = calling.get("allowedFunctionNames", ["required"])
    return {"AUTO": "auto", "NONE": "none", "ANY": str(named), "": ""}[calling.get("mode", "")]


def _sampling(config: dict[str, Any]) -> dict[str, Any]:
    names = {"temperature": "temperature", "topP": "top_p", "maxOutputTokens": "max_tokens", "seed": "seed"}
    sampling = {ours: config[theirs] for theirs, ours in names.items() if theirs in config}
    if "stopSequences" in config:
        sampling["stop"] = tuple(config["stopSequences"])
    if "thinkingLevel" in config.get("thinkingConfig", {}):
        sampling["effort"] = config["thinkingConfig"]["thinkingLevel"].lower()
    return sampling


def _media(parts: list[dict[str, Any]]) -> Iterator[str]:
    for part in parts:
        if "inlineData" in part:
            yield part["inlineData"]["mimeType"]
        elif "fileData" in part:
            yield "url"
