"""Counts the tokens of the chat model calls inside a runnable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.tracers.context import _configure_hooks, register_configure_hook

from langchain_conductor.models.budget import disable_budget_callback


class UsageCallback(UsageMetadataCallbackHandler):
    """Adds up the token usage that chat models report."""

    @property
    def total(self) -> UsageMetadata | None:
        """The usage of all models together; `None` if none was reported."""
        total: UsageMetadata | None = None
        for usage in self.usage_metadata.values():
            total = add_usage(total, usage)
        return total


_callback: ContextVar[UsageCallback | None] = ContextVar("conductor_usage", default=None)
register_configure_hook(_callback, inheritable=True)


@contextmanager
def count_usage() -> Iterator[UsageCallback]:
    """Counts the usage of all chat model calls in this block."""
    token = _callback.set(callback := UsageCallback())
    try:
        yield callback
    finally:
        _callback.reset(token)


def disable_usage_callbacks() -> None:
    """Stops counting and reserving calls in the current context, for a conductor, which does both itself."""
    for variable, *_ in _configure_hooks:  # also those of LangChain's `get_usage_metadata_callback`
        if isinstance(variable.get(), UsageMetadataCallbackHandler):
            variable.set(None)
    disable_budget_callback()
