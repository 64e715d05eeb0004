"""Options from files: their values are converted to the types that adapters have for them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor.models import PROVIDERS, Capabilities, adapter
from rl_conductor.models.adapter_options import checked_options
from rl_conductor.models.openai.azure import AzureModel
from rl_conductor.types import Price

if TYPE_CHECKING:
    from fractions import Fraction


def made_elsewhere(name: str, *, share: Fraction, retries: int = 2) -> None: ...


@pytest.mark.parametrize("provider", sorted(PROVIDERS.keys() - {"vllm", "transformers"}))  # these need torch
def test_every_adapter_has_types_for_its_options(provider: str) -> None:
    assert checked_options({}, adapter(provider)) == {}


def test_tables_become_values() -> None:
    options = {"capabilities": {"tools": True}, "price": {"input": "0.5", "output": 1}, "headers": {"X-Team": "blue"}}
    assert checked_options(options, adapter("openai")) == {
        "capabilities": Capabilities(tools=True),
        "price": Price(input=Decimal("0.5"), output=Decimal(1)),
        "headers": {"X-Team": "blue"},
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"headers": {"X": 5}}, "options.headers.X: write a string"),
        ({"headers": ["X"]}, "options.headers: write a table"),
        ({"extra_body": "x"}, "options.extra_body: write a table"),
        ({"base_url": 5}, "options.base_url: write a string"),
        ({"price": 5}, "options.price: write a table or a dict of settings"),
        ({"context": "x"}, "options.context: write an integer"),
        ({"capabilities": {"tools": "x"}}, "options.capabilities.tools: write true or false"),
        ({"api_version": 5, "context": "x"}, "options.context: write an integer; options.api_version: write a string"),
    ],
)
def test_values_of_a_wrong_type_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_options(options, AzureModel)
    assert sorted(str(caught.value).split("; ")) == sorted(says.split("; "))


@pytest.mark.parametrize("source", [adapter("openai"), made_elsewhere, lambda *, anything=None: None])
def test_what_has_no_known_type_is_left_as_it_is(source: Any) -> None:
    assert checked_options({"anything": 5, "share": "x"}, source) == {"anything": 5, "share": "x"}
