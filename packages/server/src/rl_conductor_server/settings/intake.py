"""Limits of incoming requests."""

from __future__ import annotations

from pydantic import Field

from rl_conductor.pool.model_entry import Entry


class IntakeEntry(Entry):
    """Limits of incoming requests: `[intake]`."""

    running: int = Field(default=64, ge=1)
    """Maximum number of concurrent runs; if there are several keys, each has at most two thirds of them."""
    waiting: int = Field(default=128, ge=0)
    """Maximum number of queued runs; further ones are rejected with status 429."""
    body_bytes: int = Field(default=16 * 2**20, ge=1024)
    """Maximum bytes of a request."""
    total_body_bytes: int = Field(default=24 * 2**20, ge=1024)
    """Maximum bytes of all requests in progress together, each times its choices; they take about 25 times as much
    memory."""
    messages: int = Field(default=2_000, ge=1)
    """Maximum number of messages (or input items) of a request."""
    tools: int = Field(default=256, ge=0)
    """Maximum number of tools of a request."""
    parts: int = Field(default=4_000, ge=1)
    """Maximum number of content parts of all messages of a request, those of its history included."""
    values: int = Field(default=50_000, ge=100)
    """Maximum number of JSON values of a request, such as those of schemas and tools."""
    streams: int = Field(default=100, ge=1)
    """Maximum number of open pages and resumed streams of a key, which read the store at intervals."""
    connections: int | None = Field(default=None, ge=4)
    """Maximum number of connections of a process; `None` means three quarters of its open files, and at most 10,000.
    Beyond it, idle connections are closed. Three quarters of them may have a request in progress; if there are several
    keys, each may have two thirds of these."""
    header_bytes: int = Field(default=64 * 2**10, ge=1024)
    """Maximum bytes of the headers of a request; until it is complete, with its trailers and the framing of chunks."""
    client_seconds: float = Field(default=30.0, gt=0)
    """Seconds that a client may take to send its headers, to send its body, and to read each part of the response."""
    strict: bool = False
    """Rejects request fields that have no effect here, instead of listing them in `x-conductor-ignored`."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Seconds that runs in progress may still take after the shutdown signal."""
