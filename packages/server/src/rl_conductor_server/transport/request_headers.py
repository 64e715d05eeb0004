"""Reads the headers of a request for an answer: the idempotency key, and whether the cache may answer."""

from __future__ import annotations

from starlette.requests import Request

from rl_conductor_server.errors import ApiError

MAX_KEY_CHARS = 255


def read_idempotency_key(http: Request) -> str | None:
    """Returns the header `Idempotency-Key`.

    Raises:
        ApiError: it is longer than the store's column.
    """
    key = http.headers.get("idempotency-key") or None
    if key is not None and len(key) > MAX_KEY_CHARS:
        raise ApiError(f"Idempotency-Key is longer than {MAX_KEY_CHARS} characters", status=400, code="invalid_value")
    return key


def wants_cached(http: Request) -> bool:
    """Returns `False` if the header `Cache-Control` asks for a new answer."""
    directives = {part.strip().lower() for part in http.headers.get("cache-control", "").split(",")}
    return not directives & {"no-cache", "no-store", "max-age=0"}
