"""Parses and formats long texts in threads, so that other requests are answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_INLINE_BYTES = 16 * 2**10
"""Size of a text above which it is parsed or formatted in a thread; a smaller one takes a few milliseconds."""


async def run_by_size(size: int, work: Callable[[], T]) -> T:
    """Returns the result of `work`, which parses or formats a text of `size` bytes: in a thread if that takes long.

    A thread helps as far as `work` consists of many steps, because each of them holds the interpreter lock.
    """
    return work() if size <= MAX_INLINE_BYTES else await asyncio.to_thread(work)
