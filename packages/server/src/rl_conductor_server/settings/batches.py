"""Limits of files and batches."""

from __future__ import annotations

from pydantic import Field

from rl_conductor.pool.model_entry import Entry


class BatchEntry(Entry):
    """Files and batches: `[batches]`."""

    concurrency: int = Field(default=4, ge=0)
    """Maximum number of items that a server processes at once; with 0, only batch workers process them."""
    file_bytes: int = Field(default=16 * 2**20, ge=1024)
    """Maximum bytes of an uploaded file."""
    lines: int = Field(default=10_000, ge=1)
    """Maximum number of lines of a file."""
    reply_bytes: int = Field(default=2**20, ge=1024)
    """Maximum bytes of a result; the item fails if it is larger."""
    key_bytes: int = Field(default=256 * 2**20, ge=1024)
    """Maximum bytes of all files of a key, and of the requests and results of its unfinished batches; with more, it
    can't upload, batches are rejected, and requests of batches fail."""
    key_files: int = Field(default=1_000, ge=1)
    """Maximum number of files of a key, those with results included; with more, it can't upload."""
    key_batches: int = Field(default=2_000, ge=1)
    """Maximum number of batches of a key, those that have ended included, until `retain_days` deletes them."""
    unfinished: int = Field(default=20, ge=1)
    """Maximum number of batches of a key that have not ended."""
