"""`ApiAdapter`: the interface between the server and each vendor's API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.results import Results
from rl_conductor_server.errors import ApiError
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.store.runs.run_id import random_part


@dataclass(frozen=True)
class ResponseHeader:
    """The fields of a response that are known before the run ends."""

    run: str
    """The id of the (first) run."""
    created: int
    model: str
    """The pinned name of the requested model."""
    fingerprint: str
    """See `ServedModel.fingerprint`."""

    @property
    def id_suffix(self) -> str:
        """The run's id without its prefix, for ids in the vendor's format."""
        return random_part(self.run)


class StreamEncoder(Protocol):
    """Encodes one streamed response as server-sent events."""

    def start(self) -> Iterator[str]:
        """Encodes the events before the first text."""

    def text(self, choice: int, text: str) -> Iterator[str]:
        """Encodes a piece of an answer."""

    def progress(self, report: dict[str, Any]) -> Iterator[str]:
        """Encodes a progress report as an event that every client can ignore."""

    def finish(self, choice: int, trace: Trace) -> Iterator[str]:
        """Encodes the end of an answer, after its run has finished."""

    def end(self, results: Results) -> Iterator[str]:
        """Encodes the events after the last answer."""

    def error(self, error: ApiError) -> Iterator[str]:
        """Encodes an error that ends the stream."""


class ApiAdapter(Protocol):
    """Translates between one vendor's API and the server."""

    name: str

    def parse(self, body: bytes, *, strict: bool) -> ParsedRequest:
        """Parses a request body; a `strict` server rejects fields that it would ignore. Raises `ApiError`."""

    def response(self, parsed: ParsedRequest, header: ResponseHeader, results: Results) -> dict[str, Any]:
        """Builds the body of a response that is not streamed; without results, of one that has just begun."""

    def stream(self, parsed: ParsedRequest, header: ResponseHeader) -> StreamEncoder:
        """Creates the encoder of a streamed response."""

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """Builds the body of an error response."""
