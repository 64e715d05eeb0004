"""Runs coroutines at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from rl_conductor.errors import ConductorError


async def run_together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines, each in a task, until all have ended or one fails; the others are cancelled then.

    Raises:
        ConductorError: the first one that was raised.
        ExceptionGroup: other errors were raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except ExceptionGroup as error:  # not `except*`, which wraps what its block raises in Python before 3.11.4
        expected, others = error.split(ConductorError)
        if expected is None or others is not None:
            raise
        raise expected.exceptions[0] from None
