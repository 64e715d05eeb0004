"""Values of files and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field

from rl_conductor.types import Text, Value

FilePurpose = Literal["batch", "batch_output"]
ResultPart = Literal["output", "errors"]
"""The part of a batch's results that a file contains."""
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
UNFINISHED: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
ItemStatus = Literal["new", "queued", "running", "done", "failed", "cancelled"]
OPEN_STATUSES: tuple[ItemStatus, ...] = ("new", "queued", "running")


@dataclass(frozen=True)
class Quota:
    """An amount of stored things."""

    bytes: int
    count: int


class StoredFile(Value):
    """A file of an API key, without its content."""

    id: str
    key: str
    name: Text
    purpose: FilePurpose
    bytes: int
    created: float
    batch: str | None = None
    part: ResultPart | None = None


class InputError(Value):
    """A line of an input file that can't be used."""

    code: str
    message: Text
    line: int | None = None
    """Counted from 1."""
    param: str | None = None


class NewItem(Value):
    """A line of an input file."""

    line: int
    """Counted from 1."""
    custom_id: Text
    body: Text
    """The request as JSON."""


class StoredBatch(Value):
    """A batch with its state and counts."""

    id: str
    key: str
    endpoint: str
    input_file: str
    output_file: str | None = None
    error_file: str | None = None
    status: BatchStatus = "validating"
    created: float
    expires: float
    cancelling: float | None = None
    """When it was asked to stop."""
    ended: float | None = None
    labels: dict[Text, Text] = Field(default_factory=dict)
    errors: tuple[InputError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0


class Place(NamedTuple):
    """The batch and the line of an item."""

    batch: str
    line: int


class ClaimedItem(Value):
    """An item that this process runs."""

    batch: str
    key: str
    endpoint: str
    line: int
    custom_id: str
    body: str

    @property
    def place(self) -> Place:
        return Place(self.batch, self.line)

    @property
    def idempotency_key(self) -> str:
        """The idempotency key of its run, by which another process continues it."""
        return f"{self.batch}:{self.line}"


class ItemResult(Value):
    """The end of an item."""

    status: Literal["done", "failed", "cancelled"]
    text: str | None = None
    """A line of the output or the error file."""
