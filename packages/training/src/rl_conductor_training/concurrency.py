"""Runs coroutines at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from rl_conductor.errors import ConductorError

T = TypeVar("T")


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines, each in a task, and returns their results; when one fails, the others are cancelled.

    Raises:
        ConductorError: the first one that was raised.
        ExceptionGroup: other errors were raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as error:  # not `except*`, which wraps what its block raises in Python before 3.11.4
        expected, others = error.split(ConductorError)
        if expected is None or others is not None:
            raise
        first = expected.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]
