"""Prices of LangChain's chat models, and of other runnables by the models in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.runnables import Runnable

from rl_conductor.integration import parts_of, price_of
from rl_conductor.types import Price

PRICE_PROVIDERS = {"google_genai": "google", "google_vertexai": "google"}
"""Providers that LangChain and the price data name differently."""


def price_of_chat(params: Mapping[str, Any]) -> Price | None:
    """Returns the current price of a chat model, if it is known; `params` are those that it reports to tracers."""
    provider, model_name = params.get("ls_provider", ""), params.get("ls_model_name")
    return price_of(PRICE_PROVIDERS.get(provider, provider), model_name) if model_name else None


def prices_in(runnable: Runnable[Any, Any]) -> set[Price | None]:
    """Returns the prices of the language models that `runnable` holds; `None` is an unknown one."""
    return {_price_of_model(part) for _, part in parts_of(runnable) if isinstance(part, BaseLanguageModel)}


def _price_of_model(model: BaseLanguageModel[Any]) -> Price | None:
    # LangChain's only common way to read provider and model name.
    return price_of_chat(model._get_ls_params()) if isinstance(model, BaseChatModel) else None  # noqa: SLF001
