"""What of LlamaIndex blocks the event loop: async methods of base classes that call the sync ones."""

from __future__ import annotations

from rl_conductor.models.redaction import parts_of


def blocks(thing: object, method: str, base: type) -> bool:
    """Whether `thing` leaves an async `method` to `base`, which calls its sync one and holds up every other worker."""
    return next(kind for kind in type(thing).__mro__ if method in vars(kind)) is base


def uses_async(thing: object) -> bool:
    """Whether the sync methods of `thing` run async ones, on an event loop of each call's own, because of `use_async`.

    An async client in it could not serve the second of these loops, so its async methods are always awaited.
    """
    fields = (part for _, part in parts_of(thing) if isinstance(part, dict))
    return any(part.get("use_async") is True or part.get("_use_async") is True for part in fields)
