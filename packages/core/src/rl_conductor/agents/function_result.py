"""Converts what Python functions return, as workers or as tools, to text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing
from functools import partial

from pydantic_core import to_json

from rl_conductor._internal.blocking import in_thread
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Message


async def collect_result(result: object) -> object:
    """Awaits a coroutine, and collects what a generator yields: pieces of text as one text, others as a list."""
    match result:
        case Awaitable():
            return await result
        case AsyncGenerator():
            async with aclosing(result):
                pieces = [piece async for piece in result]
        case Iterator():
            pieces = await in_thread(partial(list, result))
        case _:
            return result
    return "".join(pieces) if pieces and all(isinstance(piece, str) for piece in pieces) else pieces


def result_text(result: object) -> str | None:
    """Converts a result to text: that of a message, a completion or a trace, and JSON of other data.

    Returns:
        `None` for an object that can't be written as text or JSON.
    """
    match result:
        case str():
            return result
        case Message() | Completion() | Trace():
            return result.text
    if type(result).__str__ is object.__str__ and type(result).__repr__ is object.__repr__:
        return None
    return to_json(result, fallback=str).decode()
