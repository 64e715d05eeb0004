"""Prices of LangChain's chat models, and of other runnables by the models in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from types import CodeType, FunctionType
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.runnables import Runnable

from langchain_conductor.messages import PROVIDER
from rl_conductor.integration import parts_of, price_of
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
    parts = [part for _, part in parts_of(runnable)]
    global_values = (value for part in parts if isinstance(part, FunctionType) for value in _global_values(part))
    for value in global_values:
        if isinstance(value, Runnable):
            parts += (part for _, part in parts_of(value))
    return {_price_of_model(part) for part in parts if isinstance(part, BaseLanguageModel)}


def _global_values(function: FunctionType) -> Iterator[object]:
    names = _names_in(function.__code__)
    return (function.__globals__[name] for name in names if name in function.__globals__)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the global names and attributes in the code of a function and of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def highest_price(prices: Collection[Price | None]) -> Price | None:
    """Returns the highest of `prices`; `None` if there is none, or if one of them is unknown."""
    candidates = [price for price in prices if price is not None]
    return max(candidates, key=_cost_per_thousand, default=None) if len(candidates) == len(prices) else None


def _cost_per_thousand(price: Price) -> Decimal:
    return price.max_cost(input_tokens=1_000, output_tokens=1_000)


def _price_of_model(model: BaseLanguageModel[Any]) -> Price | None:
    if not isinstance(model, BaseChatModel):
        return None
    params = model._get_ls_params()  # noqa: SLF001  (LangChain's only common way to read provider and model name)
    # A conductor is free by itself: its calls have the prices of its models.
    return FREE if params.get("ls_provider") == PROVIDER else price_of_chat(params)
