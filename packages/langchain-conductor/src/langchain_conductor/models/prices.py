"""Prices of LangChain's chat models, and of other runnables by the models in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.runnables import Runnable

from langchain_conductor.messages import PROVIDER
from rl_conductor.integration import instances_in, price_of
from rl_conductor.types import FREE, Price

PRICE_PROVIDERS = {"google_genai": "google", "google_vertexai": "google"}
"""Providers that LangChain and the price data name differently."""


def price_of_chat(params: Mapping[str, Any]) -> Price | None:
    """Returns the current price of a chat model, if it is known; `params` are those that it reports to tracers."""
    provider, model_name = params.get("ls_provider", ""), params.get("ls_model_name")
    return price_of(PRICE_PROVIDERS.get(provider, provider), model_name) if model_name else None


def prices_in(runnable: Runnable[Any, Any]) -> set[Price | None]:
    """Returns the prices of the language models that `runnable` holds; `None` is an unknown one.

    Functions in it, such as nodes of graphs and tools, hold the runnables in global variables that their code names.
    """
    return {_price_of_model(model) for model in _models_in(runnable)}


def holds_conductor(runnable: Runnable[Any, Any]) -> bool:
    """Returns whether `runnable` holds a conductor among its language models; its calls have prices of their own."""
    return any(_is_conductor(model) for model in _models_in(runnable))


def highest_price(prices: Collection[Price | None]) -> Price | None:
    """Returns the highest of `prices`; `None` if there is none, or if one of them is unknown."""
    candidates = [price for price in prices if price is not None]
    return max(candidates, key=_cost_per_thousand, default=None) if len(candidates) == len(prices) else None


def _cost_per_thousand(price: Price) -> Decimal:
    return price.max_cost(input_tokens=1_000, output_tokens=1_000)


def _models_in(runnable: Runnable[Any, Any]) -> Iterator[BaseLanguageModel[Any]]:
    return instances_in(runnable, BaseLanguageModel, global_kinds=Runnable)


def _is_conductor(model: BaseLanguageModel[Any]) -> bool:
    return isinstance(model, BaseChatModel) and model._get_ls_params().get("ls_provider") == PROVIDER  # noqa: SLF001


def _price_of_model(model: BaseLanguageModel[Any]) -> Price | None:
    if not isinstance(model, BaseChatModel):
        return None
    # LangChain's only common way to read provider and model name. A conductor is free by itself.
    return FREE if _is_conductor(model) else price_of_chat(model._get_ls_params())  # noqa: SLF001
