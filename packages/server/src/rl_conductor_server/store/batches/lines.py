"""Formats the lines of output and error files. Pure."""

from __future__ import annotations

import json
from typing import Any


def result_line(
    batch: str, line: int, custom_id: str, *, status: int, body: dict[str, Any], request_id: str = ""
) -> str:
    """Formats the response to an item."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(batch, line, custom_id, response=response, error=None)


def error_line(batch: str, line: int, custom_id: str, *, code: str, message: str) -> str:
    """Formats the error of an item that has no response."""
    return _line(batch, line, custom_id, response=None, error={"code": code, "message": message})


def _line(batch: str, line: int, custom_id: str, **fields: Any) -> str:
    request = f"batch_req_{batch.removeprefix('batch_')}_{line}"
    return json.dumps({"id": request, "custom_id": custom_id, **fields}, separators=(",", ":"))
