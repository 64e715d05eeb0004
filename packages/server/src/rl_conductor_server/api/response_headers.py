"""Headers of responses: the run, whether it was repeated or its input truncated, and the ignored fields."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor_server.api.adapter import ResponseHeader
from rl_conductor_server.catalog import ServedModel
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.store import Arm


def response_header(runs: Sequence[RunHandle], model: ServedModel) -> ResponseHeader:
    """Returns the part of a response that is fixed before its runs end."""
    return ResponseHeader(runs[0].id, int(runs[0].created), model.pinned, model.fingerprint)


def http_headers(runs: Sequence[RunHandle], parsed: ParsedRequest, arm: Arm | None) -> dict[str, str]:
    """Returns the headers of a response."""
    run = runs[0].id
    headers = {"x-request-id": run, "request-id": run, "x-conductor-run": run}
    if any(handle.is_replayed for handle in runs):
        headers["idempotent-replayed"] = "true"
    if parsed.ignored:
        headers["x-conductor-ignored"] = ", ".join(parsed.ignored)
    if parsed.state is not None and parsed.state.is_truncated:
        headers["x-conductor-truncated"] = "true"
    if arm:
        headers["x-conductor-arm"] = arm
    return headers
