"""Walks the objects that an object holds, such as the clients and models in an agent of a host framework."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pydantic import SecretStr

MAX_OBJECTS = 10_000
"""Maximum number of objects that are walked; a client is never further than that from its key."""


def parts_of(root: object, *, is_opaque: Callable[[object], bool] | None = None) -> Iterator[tuple[str, object]]:
    """Yields an object and all objects reachable from it, breadth first, each with its name.

    What opaque objects hold is left out.
    """
    seen: set[int] = set()
    queue: deque[tuple[str, object]] = deque([("", root)])
    while queue and len(seen) < MAX_OBJECTS:
        name, part = queue.popleft()
        if isinstance(part, str | SecretStr):
            yield name, part
        elif id(part) not in seen:
            seen.add(id(part))
            yield name, part
            if is_opaque is None or not is_opaque(part):
                queue.extend(_children(name, part))


def _children(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields the direct children of `value` with their names."""
    match value:
        case dict():
            yield from (
                (key if isinstance(key, str) else name, part) for key, part in tuple(value.items())[:MAX_OBJECTS]
            )
        case list() | tuple() | set() | frozenset():
            yield from ((name, part) for part in tuple(value)[:MAX_OBJECTS])
        case partial():
            yield from ((name, part) for part in (value.func, value.args, value.keywords))
        case MethodType():
            yield name, value.__self__
        case FunctionType():
            yield from _closure_variables(value)
        case type() | ModuleType():
            return
        case _:
            for fields in ("__dict__", "__pydantic_private__"):
                with suppress(AttributeError):  # `getattr` would make lazy proxies load
                    yield name, object.__getattribute__(value, fields)


def _closure_variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yields the closure variables of a function; agents often hold their model there."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents


def instances_in(
    root: object,
    kind: type,
    *,
    global_kinds: type | tuple[type, ...],
    is_opaque: Callable[[object], bool] | None = None,
) -> Iterator[Any]:
    """Yields the objects of `kind` that an object holds, except for those inside of opaque objects.

    Functions in it, such as tools and nodes of graphs, hold those in global variables that their code names, and what
    global variables of `global_kinds` hold.
    """
    parts = [part for _, part in parts_of(root, is_opaque=is_opaque)]
    functions = [part for part in parts if isinstance(part, FunctionType)]
    global_values = [value for function in functions for _, value in global_variables(function)]
    for value in global_values:
        if isinstance(value, global_kinds):
            parts += (part for _, part in parts_of(value, is_opaque=is_opaque))
    yield from (part for part in parts if isinstance(part, kind))


def global_variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yields the names and values of the global variables that the code of a function names."""
    names = _names_in(function.__code__)
    return ((name, function.__globals__[name]) for name in names if name in function.__globals__)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the global names and attributes in the code of a function and of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
