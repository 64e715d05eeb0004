"""Keys stay out of errors: they are found in whatever holds them, and cut out of what others say."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType

from pydantic import SecretStr

from rl_conductor.errors import ModelError

HIDDEN = "[secret]"
TELLING = 8
"""Characters in a row that give a part of a key away."""
MOST = 10_000
"""Objects that are looked through for keys; whoever uses a key is nearer than that."""

_KINDS_OF_KEY = "access|account|api|app|auth|private|secret|subscription"
_NAME = re.compile(rf"({_KINDS_OF_KEY})[-_]?key|secret|password|authorization|(^|_)token$", re.IGNORECASE)
"""Names of what holds a key. A plain `key` is none: that of a dictionary is often called so."""
_TOKEN = re.compile(r"[\w*.…•-]+")
_MASK = re.compile(r"[*•]{2,}|\.{3,}|…")


@contextmanager
def hiding(*secrets: str | None) -> Iterator[None]:
    """Our errors leave the block without these: vendors quote keys, in whole, in part or behind stars."""
    try:
        yield
    except ModelError as error:
        error.args = (without_secrets(str(error), secrets),)
        raise


# ----------------------------------------------------------------------------------- cutting out


def without_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """`text` with each of `secrets` replaced, also where only a part of it stands."""
    for secret in (one for one in secrets if one and len(one) >= TELLING):  # shorter ones stand in for a key
        masked = {token for token in _TOKEN.findall(text) if _is_masked(token, secret)}
        for token in sorted(masked, key=len, reverse=True):
            text = text.replace(token, HIDDEN)
        text = _without_parts(text, secret)
    return text


def _without_parts(text: str, secret: str) -> str:
    """`text` without what it shares with `secret` for `TELLING` characters or more."""
    for start in range(len(secret) - TELLING + 1):
        if secret[start : start + TELLING] in text:
            for end in range(len(secret), start + TELLING - 1, -1):
                text = text.replace(secret[start:end], HIDDEN)
    return text


def _is_masked(token: str, secret: str) -> bool:
    """Whether this is the beginning or the end of `secret` beside a mask."""
    ends = (end for part in _MASK.split(token) if len(end := part.strip(".")) >= 3)
    return _MASK.search(token) is not None and any(secret.startswith(end) or secret.endswith(end) for end in ends)


# --------------------------------------------------------------------------------------- finding


def secrets_in(thing: object) -> set[str]:
    """The keys in an object and in what it is made of: pydantic's secrets, and texts with a telling name."""
    found: set[str] = set()
    for name, part in parts_of(thing):
        if isinstance(part, SecretStr):
            found.add(part.get_secret_value())
        elif isinstance(part, str) and part and _NAME.search(name):
            found.add(part)
    return found


def parts_of(thing: object) -> Iterator[tuple[str, object]]:
    """Yields an object and the objects that can be reached from it, the nearest first, each with a name."""
    seen: set[int] = set()
    ahead: deque[tuple[str, object]] = deque([("", thing)])
    while ahead and len(seen) < MOST:
        name, part = ahead.popleft()
        if isinstance(part, str | SecretStr):
            yield name, part
        elif id(part) not in seen:
            seen.add(id(part))
            yield name, part
            ahead.extend(_parts(name, part))


def _parts(name: str, held: object) -> Iterator[tuple[str, object]]:
    """What `held` is made of, by name."""
    match held:
        case dict():
            yield from ((key if isinstance(key, str) else name, part) for key, part in tuple(held.items())[:MOST])
        case list() | tuple() | set() | frozenset():
            yield from ((name, part) for part in tuple(held)[:MOST])
        case partial():
            yield from ((name, part) for part in (held.func, held.args, held.keywords))
        case MethodType():
            yield name, held.__self__
        case FunctionType():
            yield from _closed_over(held)
        case type() | ModuleType():
            return
        case _:
            for fields in ("__dict__", "__pydantic_private__"):
                with suppress(AttributeError):  # `getattr` would wake up proxies
                    yield name, object.__getattribute__(held, fields)


def _closed_over(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The variables from around a function: an agent has its model there."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it holds nothing yet
            yield name, cell.cell_contents
