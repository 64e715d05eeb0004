"""Detects async methods that would block the event loop, and sync methods that start event loops."""

from __future__ import annotations

from rl_conductor.integration import parts_of


def inherits_method(instance: object, method: str, base: type) -> bool:
    """Whether `instance` inherits the async `method` of `base`, which calls the sync method and blocks the loop."""
    return next(cls for cls in type(instance).__mro__ if method in vars(cls)) is base


def uses_async(instance: object) -> bool:
    """Whether the sync methods of `instance` run async ones on a new event loop per call, because of `use_async`.

    An async client inside could not serve the second of these loops, so such an object must always be awaited.
    """
    fields = (part for _, part in parts_of(instance) if isinstance(part, dict))
    return any(part.get("use_async") is True or part.get("_use_async") is True for part in fields)
