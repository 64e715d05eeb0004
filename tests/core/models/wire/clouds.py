"""Vendors' protocols as clouds and gateways serve them: other addresses, credentials, and for AWS another framing."""

from __future__ import annotations

import json
import re
import struct
from base64 import b64encode
from binascii import crc32

from .anthropic import AnthropicWire
from .base import SECRET, Failure, Wire
from .google import GoogleWire
from .openai import OpenAIWire

REGION = "eu-west-1"
PROJECT = "my-project"
CLAUDE = "claude-"
"""How names of Anthropic's models start on Vertex AI."""
CONTEXT_ERROR = {"message": "Input is too long for requested model."}

AZURE_PATH = re.compile(r"/openai/deployments/([^/]+)/chat/completions\?api-version=2024-10-21")
BEDROCK_PATH = re.compile(
    r"/model/(?:arn%3A[^/]*%2F|arn:[^/]*)?(?:anthropic\.)?([^/]+)/(invoke|invoke-with-response-stream)"
)
VERTEX = rf"projects/{PROJECT}/locations/global/publishers"
GEMINI_PATH = re.compile(rf"/v1beta1/{VERTEX}/google/models/([^:]+):(generateContent|streamGenerateContent\?alt=sse)")
CLAUDE_PATH = re.compile(rf"/v1/{VERTEX}/anthropic/models/{CLAUDE}([^:]+):(rawPredict|streamRawPredict)")
SIGNATURE = re.compile(
    rf"AWS4-HMAC-SHA256 Credential=(\w+)/\d{{8}}/{REGION}/(bedrock|bedrock-mantle)/aws4_request, "
    r"SignedHeaders=[\w;-]*host;[\w;-]*x-amz-date[\w;-]*, Signature=[0-9a-f]{64}"
)


def check_bearer(wire: Wire) -> None:
    """The request has the key as a bearer token."""
    assert wire.headers["authorization"] == f"Bearer {SECRET}"


def check_aws(wire: Wire) -> None:
    """The request has the key as a bearer token, or a signature of AWS."""
    authorization = wire.headers["authorization"]
    assert authorization == f"Bearer {SECRET}" or SIGNATURE.fullmatch(authorization)


class AzureWire(OpenAIWire):
    """`POST /openai/deployments/DEPLOYMENT/chat/completions?api-version=...`, and `/openai/v1/chat/completions`."""

    def addressee(self, wire: Wire) -> str:
        """The deployment, which the older API has in the address; there the key has a header of its own."""
        if wire.path == "/openai/v1/chat/completions":
            assert wire.headers["authorization"].startswith("Bearer ")
            return str(wire.body["model"])
        path = AZURE_PATH.fullmatch(wire.path)
        assert path
        assert wire.headers.get("api-key") == SECRET or wire.headers["authorization"].startswith("Bearer ")
        return path[1]


class GatewayWire(OpenAIWire):
    """LiteLLM's `POST /v1/chat/completions`."""

    max_tokens = "max_tokens"

    def addressee(self, wire: Wire) -> str:
        """The model."""
        assert wire.path == "/v1/chat/completions"
        check_bearer(wire)
        return str(wire.body["model"])


class BedrockWire(OpenAIWire):
    """`POST /openai/v1/chat/completions`."""

    max_tokens = "max_tokens"

    def addressee(self, wire: Wire) -> str:
        """The model."""
        assert wire.path == "/openai/v1/chat/completions"
        check_aws(wire)
        return str(wire.body["model"])


class BedrockClaudeWire(AnthropicWire):
    """`POST /model/anthropic.MODEL/invoke` and `invoke-with-response-stream`, which streams AWS's binary messages."""

    stream_type = "application/vnd.amazon.eventstream"

    def addressee(self, wire: Wire) -> tuple[str, bool]:
        """The model, and whether the reply is streamed; both stand in the address only."""
        path = BEDROCK_PATH.fullmatch(wire.path)
        assert path
        check_aws(wire)
        assert wire.body["anthropic_version"]
        assert wire.body.keys().isdisjoint({"model", "stream"})
        return path[1], path[2] != "invoke"

    def failure(self, scenario: str) -> Failure:
        """AWS's error, which has only a message."""
        if scenario == "context":
            return Failure(400, CONTEXT_ERROR)
        failure = super().failure(scenario)
        return Failure(failure.status, {"message": failure.body["error"]["message"]}, failure.headers)

    def broken_event(self, scenario: str) -> str:
        """An exception, which is always the same."""
        return json.dumps({"message": "The system encountered an unexpected error."})

    def frame(self, event: str) -> bytes:
        """A chunk, or an exception."""
        _, marker, data = event.partition("data: ")
        if not marker:
            return message({":message-type": "exception", ":exception-type": "internalServerException"}, event)
        content = json.dumps({"bytes": b64encode(data.strip().encode()).decode()})
        return message({":message-type": "event", ":event-type": "chunk", ":content-type": "application/json"}, content)


def message(headers: dict[str, str], content: str) -> bytes:
    """A message of AWS's event streams: lengths, checksum, headers, content, checksum."""
    fields = b"".join(
        struct.pack(f"!B{len(name)}sBH{len(value)}s", len(name), name.encode(), 7, len(value), value.encode())
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(fields) + len(content.encode()), len(fields))
    body = prelude + struct.pack("!I", crc32(prelude)) + fields + content.encode()
    return body + struct.pack("!I", crc32(body))


class VertexClaudeWire(AnthropicWire):
    """`POST /v1/projects/.../publishers/anthropic/models/MODEL:rawPredict` and `:streamRawPredict`."""

    def addressee(self, wire: Wire) -> tuple[str, bool]:
        """The model, and whether the reply is streamed."""
        path = CLAUDE_PATH.fullmatch(wire.path)
        assert path
        check_bearer(wire)
        assert wire.body["anthropic_version"]
        assert "model" not in wire.body
        return path[1], path[2] == "streamRawPredict"


class VertexWire(GoogleWire):
    """`POST /v1beta1/projects/.../publishers/google/models/MODEL:generateContent` and `:streamGenerateContent`."""

    def addressee(self, wire: Wire) -> tuple[str, bool]:
        """The model, and whether the reply is streamed."""
        path = GEMINI_PATH.fullmatch(wire.path)
        assert path
        check_bearer(wire)
        assert "x-goog-api-key" not in wire.headers
        return path[1], path[2].startswith("stream")
