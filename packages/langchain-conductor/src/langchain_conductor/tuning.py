"""Applies the sampling settings of a request to a LangChain chat model, by whatever fields the model has for them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from langchain_core.language_models import BaseChatModel

from rl_conductor.types import Sampling

OTHER_NAMES = {"reasoning_effort": "effort", "stop_sequences": "stop", "num_predict": "max_tokens"}
"""What some vendors' models call the fields of `Sampling`."""


def tuned(chat: BaseChatModel, sampling: Sampling) -> BaseChatModel:
    """A copy of `chat` with the settings that `sampling` asks for and `chat` has; `chat` itself where there are none.

    The copy is not built anew: that would mark every field as set by the user, of which LangChain takes
    `streaming=False` as an order, and it would lose private state and fail on constructors of users' own.
    """
    asked = sampling.model_dump(exclude_defaults=True, mode="json")
    settings = {field: asked[name] for field, name in _fields(chat) if asked.get(name) is not None}
    if not settings:
        return chat
    copy = chat.model_copy(update=settings)
    for name in _cached_properties(type(chat)) & vars(copy).keys():
        del vars(copy)[name]  # computed from the settings before
    return copy


def stop_option(chat: BaseChatModel, sampling: Sampling) -> dict[str, Any]:
    """Passes stop sequences to a call of a model that has no field for them; some models refuse both at once."""
    if not sampling.stop or "stop" in {name for _, name in _fields(chat)}:
        return {}
    return {"stop": list(sampling.stop)}


def _fields(chat: BaseChatModel) -> list[tuple[str, str]]:
    """Fields of the chat model, each with the name that `Sampling` may have for it."""
    return [
        (field, OTHER_NAMES.get(name, name))
        for field, info in type(chat).model_fields.items()
        for name in (field, info.alias)
        if name is not None
    ]


def _cached_properties(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, cached_property)}
