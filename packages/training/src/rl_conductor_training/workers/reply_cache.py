"""`ReplyCache`: caches the replies of workers and other models, so that none is paid for twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rl_conductor._internal.imports import import_object
from rl_conductor.agents import DelegatingModel
from rl_conductor.models import Model
from rl_conductor.models.base import WrapperModel
from rl_conductor.models.http.model import HTTPModel
from rl_conductor.pool.function_model import FunctionModel
from rl_conductor.pool.model_entry import ModelEntry, is_import_path
from rl_conductor.pool.worker import Worker
from rl_conductor_training.tasks.own import hash_source
from rl_conductor_training.workers.cached_model import CachedModel

SPEED_OPTIONS = ("threads", "parallel", "engine")
"""Options that affect speed only, and are left out of cache versions."""
BASE_OPTIONS = "base_options"
PACKAGES = ("rl_conductor", "langchain_conductor", "llama_index.llms.conductor")
"""The prefixes of our own modules, which are not the user's code."""


@dataclass
class ReplyCache:
    """Caches the replies of all models, so that none is paid for twice."""

    path: Path | None
    """An SQLite file; `None` disables caching."""
    models: list[Model] = field(default_factory=list)
    """All models in use, for closing."""

    def build_model(self, entry: ModelEntry) -> Model:
        """Builds the model of an entry and caches its replies."""
        return self._cache_model(entry.build(), cache_version(entry))

    def wrap_worker(self, worker: Worker, entry: ModelEntry) -> Worker:
        """Caches the replies of a worker; of a delegating one, the replies of its base model only."""
        if isinstance(worker.model, DelegatingModel):
            return replace(
                worker, model=worker.model.with_base(self._cache_model(worker.model.base, cache_version(entry)))
            )
        return replace(worker, model=self._cache_model(worker.model, cache_version(entry)))

    def _cache_model(self, base_model: Model, version: str) -> Model:
        cached = base_model if self.path is None else CachedModel(base_model, self.path, version=version)
        self.models.append(cached)
        return cached

    async def aclose(self) -> None:
        """Closes all models and their caches."""
        for cached in self.models:
            await cached.aclose()


def cache_version(entry: ModelEntry) -> str:
    """Serialises all that affects replies besides the model's name: options, size and time of its files, its code."""
    options = reply_options(entry)
    paths = [text for text in (entry.model.partition(":")[2], *options.values()) if isinstance(text, str)]
    stats = {name: Path(name).stat() for name in paths if Path(name).is_file()}
    stamps: dict[str, Any] = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    stamps |= _adapter_hash(entry.model)
    if is_import_path(entry.model):
        stamps[entry.model] = code_version(import_object(entry.model))
    return json.dumps([options, stamps], sort_keys=True) if options or stamps else ""


def object_version(model: Model) -> str:
    """Serialises all that affects the replies of a model built in Python besides its name, as far as it is known.

    That is the address of a server and the fields added to its requests, and the code of functions and users' classes.
    """
    if isinstance(model, WrapperModel):
        return object_version(model.model)
    if isinstance(model, DelegatingModel):
        return object_version(model.base)
    if isinstance(model, HTTPModel):
        return json.dumps(model.reply_options, sort_keys=True) if model.reply_options else ""
    if isinstance(model, FunctionModel):
        return code_version(model.function)
    return "" if type(model).__module__.startswith(PACKAGES) else code_version(type(model))


def reply_options(entry: ModelEntry) -> dict[str, Any]:
    """Returns the options that affect replies, with those of a base model."""
    options = {name: value for name, value in entry.options.items() if name not in (*SPEED_OPTIONS, BASE_OPTIONS)}
    base_options = entry.options.get(BASE_OPTIONS, {})
    return options | {f"base {name}": value for name, value in base_options.items() if name not in SPEED_OPTIONS}


def code_version(code: Callable[..., Any]) -> str:
    """Returns the name of a function or class that a user wrote, with its module and a hash of the module's source."""
    target = code.func if isinstance(code, partial) else code
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{target.__module__}:{name} {hash_source(target.__module__)}"


def _adapter_hash(name: str) -> dict[str, str]:
    """Returns the hash of an embedded model's adapter, which a release may change under the same name."""
    provider, _, own = name.partition(":")
    if provider != "embedded":
        return {}
    from rl_conductor.models.llamacpp.weights import PINNED  # noqa: PLC0415  an extra

    adapter = PINNED[own].adapter if own in PINNED else None
    return {} if adapter is None else {adapter.file: adapter.sha256}
