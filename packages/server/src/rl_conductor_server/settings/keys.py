"""API keys, their budgets and limits, and administrators."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rl_conductor.pool.model_entry import Entry
from rl_conductor.workflow.limits import MAX_LIMIT

MAX_USD = 10**9
"""Maximum budget of a period in US dollars: larger amounts don't fit into the sums of the store."""
USD_DECIMALS = 12
"""Decimal places of dollars in the store."""
MAX_RATE, MAX_CACHE_SECONDS = 10**6, 10**9
"""Maximum requests a minute, and maximum age of a cached answer."""
PRINTED_HASH = "the line that 'rl-conductor serve --new-key NAME' prints"

Period = Literal["day", "month", "ever"]
"""The period of a budget: a day or a calendar month in UTC, or all time."""


def _check_hash(text: str) -> str:
    """Rejects text that is no SHA-256, such as a key itself, without repeating it."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("write the SHA-256 of a key in 64 digits, as 'rl-conductor serve --new-key NAME' prints it")
    return text


Sha256 = Annotated[str, AfterValidator(_check_hash)]


class BudgetEntry(Entry):
    """A spending limit for a period."""

    usd: Decimal | None = Field(default=None, ge=0, le=MAX_USD, decimal_places=USD_DECIMALS)
    """US dollars a period; `None` means no limit. With a limit, calls of workers without a known price are refused."""
    tokens: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    """Input and output tokens a period; `None` means no limit."""
    per: Period = "month"
    """The period of `usd` and `tokens`, in UTC."""


class KeyLimits(BudgetEntry):
    """The limits of an API key, from the settings file or created at run time."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=MAX_RATE)
    """Maximum number of requests a minute, counted by each server separately; `None` means no limit."""
    cache_seconds: int | None = Field(default=None, ge=1, le=MAX_CACHE_SECONDS)
    """Maximum age, in seconds, of an answer that is repeated for the same request of this key; `None` disables the
    cache."""
    models: frozenset[str] | None = None
    """The names of the models that it has access to; `None` means all."""
    metrics: bool = False
    """Allows reading `/metrics`, which covers the requests of all keys."""


class KeyEntry(KeyLimits):
    """An API key: `[keys.NAME]`."""

    sha256: Sha256 = Field(examples=[PRINTED_HASH])
    """SHA-256 of the key, in hex; `rl-conductor serve --new-key NAME` generates both."""


class AdminEntry(Entry):
    """The key of an administrator: `[admins.NAME]`."""

    sha256: Sha256 = Field(examples=[PRINTED_HASH])
    """SHA-256 of the administrator's key, in hex."""
