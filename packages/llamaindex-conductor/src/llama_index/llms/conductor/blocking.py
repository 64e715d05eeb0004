"""What of LlamaIndex blocks the event loop: async methods of base classes that call the sync ones."""

from __future__ import annotations


def blocks(thing: object, method: str, base: type) -> bool:
    """Whether `thing` leaves an async `method` to `base`, which calls its sync one and holds up every other worker."""
    return next(kind for kind in type(thing).__mro__ if method in vars(kind)) is base
