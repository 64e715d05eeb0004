"""The adapter of OpenAI's Responses."""

from __future__ import annotations

from typing import Any

from rl_conductor_server.api.adapter import ResponseHeader, StreamEncoder
from rl_conductor_server.api.openai_responses.response import answered_body, unanswered_body
from rl_conductor_server.api.openai_responses.schema import ResponsesBody
from rl_conductor_server.api.openai_responses.stream import ResponseStream
from rl_conductor_server.api.results import Results
from rl_conductor_server.errors import ApiError, openai_error_body
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.request_validation.parsing import parse_request


class Responses:
    """The adapter of `POST /v1/responses`."""

    name = "responses"

    def parse(self, body: bytes, *, strict: bool) -> ParsedRequest:
        return parse_request(ResponsesBody, body, strict=strict)

    def response(self, parsed: ParsedRequest, header: ResponseHeader, results: Results) -> dict[str, Any]:
        if not results.traces:
            return unanswered_body(parsed, header, "queued")
        return answered_body(parsed, header, results)

    def stream(self, parsed: ParsedRequest, header: ResponseHeader) -> StreamEncoder:
        return ResponseStream(parsed, header)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return openai_error_body(error)
