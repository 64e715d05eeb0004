"""Reads the settings of the commands that run models, and builds these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rl_conductor.cli.embedded import prepare_models
from rl_conductor.config.discovered_pool import DiscoveredPool, from_file
from rl_conductor.config.discovery import discover
from rl_conductor.guardrails.loading import build_guardrails

if TYPE_CHECKING:
    from rl_conductor_server.catalog import ModelCatalog
    from rl_conductor_server.settings import Settings


def merge_settings(config: Path | None, **options: object) -> Settings:
    """Read the settings file, if any, and apply the options of the command line."""
    from rl_conductor_server.settings import Settings, read_settings  # noqa: PLC0415

    settings = read_settings(config) if config else Settings()
    overrides = {name: value for name, value in options.items() if value is not None}
    if "pool" in overrides:
        overrides |= {"workers": {}, "planner": None}
    if "store" in overrides:
        overrides["store"] = settings.store.model_copy(update={"url": overrides["store"]})
    return settings.model_copy(update=overrides)


def discover_pool(settings: Settings) -> DiscoveredPool:
    """Returns the pool of the settings or of a pool file, with the guardrails of both."""
    inline_pool = settings.inline_pool
    discovered = (
        from_file(inline_pool, "the settings describe it") if inline_pool else discover(pool_file=settings.pool)
    )
    return replace(discovered, guardrails=(*discovered.guardrails, *build_guardrails(settings.guardrails)))


def load_models(settings: Settings) -> tuple[ModelCatalog, DiscoveredPool]:
    """Builds the models of the settings, and downloads missing weights; returns the models and their pool.

    Raises:
        ConfigError: a model can't be built, or no source provides the weights.
    """
    from rl_conductor_server.catalog import build_catalog  # noqa: PLC0415

    discovered = discover_pool(settings)
    models = build_catalog(discovered, settings.models)
    prepare_models(next(iter(models)).conductor, discovered)
    return models, discovered
