"""Converts the results of Python functions, as workers or as tools, to text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing
from dataclasses import fields, is_dataclass

from pydantic_core import PydanticSerializationError, to_json

from rl_conductor._internal.blocking import iterate_in_thread
from rl_conductor.models.replies.size import ReplySize
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Message


async def collect_result(result: object, name: str) -> object:
    """Awaits a coroutine, and collects the values of a generator: texts are joined, others become a list.

    A generator is closed when the caller is cancelled. `name` is that of the function, for errors.

    Raises:
        BadResponseError: the pieces of text are longer than `limits.reply_chars` allows.
    """
    match result:
        case Awaitable():
            return await result
        case AsyncGenerator():
            generator = result
        case Iterator():
            generator = iterate_in_thread(lambda: result)
        case _:
            return result
    size, pieces = ReplySize(name), []
    async with aclosing(generator):
        async for piece in generator:
            size.add(piece if isinstance(piece, str) else None)
            pieces.append(piece)
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
    if is_dataclass(result) and any(field.name.startswith("_") for field in fields(result)):
        return None  # JSON of its private state is no reply
    try:
        return to_json(result, fallback=_read_object).decode()
    except PydanticSerializationError:
        return None


def describe_no_reply(result: object, name: str) -> str:
    """Explains why a result of `name` is no reply: there is none, or it has no text."""
    wrong = "nothing" if result is None else f"an object of the type {type(result).__name__}"
    return f"{name} returned {wrong}; return a text, or data that can be written as JSON"


def _read_object(value: object) -> str:
    """Returns the text of an object that is no JSON.

    Raises:
        TypeError: its class does not say how to write it.
    """
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        raise TypeError
    return str(value)
