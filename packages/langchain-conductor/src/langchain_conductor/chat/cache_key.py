"""The key under which LangChain's caches store the answers of a Conductor."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from uuid import uuid4
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from langchain_conductor.models import ChatModel
from langchain_conductor.models.invocation import callers_configurable
from langchain_conductor.tracing import untraced
from rl_conductor import Conductor
from rl_conductor.models import Model, providers

_fixed_keys: WeakKeyDictionary[Conductor, str] = WeakKeyDictionary()
"""The part of the key that stays the same while a conductor exists. It is computed once, because models change when
they are loaded."""


def cache_key(conductor: Conductor) -> tuple[str, ...]:
    """Returns a key that two conductors share only if they give the same answers.

    That is known of those that consist of LangChain's chat models, models that `model(...)` creates, and settings. Any
    other conductor, such as one with agents, functions or guardrails, has a key of its own.
    """
    fixed = _fixed_keys.get(conductor) or _fixed_keys.setdefault(conductor, _fixed_key(conductor))
    return (fixed, *(_current_key(model) for model in _models(conductor)))


def _current_key(model: Model) -> str:
    """Returns the part of the config that changes answers of `model`; its code may read all of `configurable`."""
    if isinstance(model, ChatModel):
        return model.cache_key
    if _is_of_provider(model):
        return ""
    return str(sorted(callers_configurable().items()))


def _fixed_key(conductor: Conductor) -> str:
    models = [_serialize(model) for model in _models(conductor) if not isinstance(model, ChatModel)]
    if conductor.config.guardrails or None in models:
        return uuid4().hex
    settings = {
        "name": conductor.name,
        "planners": [(planner.setup, planner.domain) for planner in conductor.planner.planners],
        "workers": [worker.setup for worker in conductor.pool.values()],
        **{name: getattr(conductor.config, name) for name in ("policy", "limits", "access", "router", "selector")},
    }
    content = b"\n".join([to_json(settings), *filter(None, models)])  # with API keys in it, so only its hash is stored
    return hashlib.sha256(content).hexdigest()


def _models(conductor: Conductor) -> Iterator[Model]:
    yield from (untraced(planner.model) for planner in conductor.planner.planners)
    yield from (untraced(worker.model) for worker in conductor.pool.values())


def _is_of_provider(model: Model) -> bool:
    return f"{type(model).__module__}:{type(model).__qualname__}" in providers().values()


def _serialize(model: Model) -> bytes | None:
    """Returns name, address and options of a model; `None` for one that also consists of code or open files."""
    if not _is_of_provider(model):
        return None
    try:
        return pickle.dumps(model)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
