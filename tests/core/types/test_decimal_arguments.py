"""Amounts may be passed as `Decimal`, `int`, `float` or `str`; `mypy` checks the calls in this file."""

from __future__ import annotations

import ast
import inspect
import textwrap
from decimal import Decimal

import pytest

from rl_conductor.types import Price, PriceTier, Usage, Value
from rl_conductor.workflow.limits import Limits

AMOUNT = Decimal("0.05")


def test_limits_accept_every_kind_of_number() -> None:
    assert Limits(usd=0.05) == Limits(usd="0.05") == Limits(usd=AMOUNT)
    assert Limits(usd=1) == Limits(usd=Decimal(1))
    assert Limits().usd is None


def test_prices_and_usage_accept_every_kind_of_number() -> None:
    tier = PriceTier(above=200_000, input=6, output="22.50", cached_input=0.6)
    price = Price(input=3, output="15", cached_input=0.3, cache_write=Decimal("3.75"), per_call=0, tiers=(tier,))
    rates = (price.input, price.output, price.cached_input, price.cache_write, tier.output)
    assert rates == (Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"), Decimal("22.5"))
    assert Usage(cost=0.05) == Usage(cost="0.05") == Usage(cost=AMOUNT)


@pytest.mark.parametrize("model", [Limits, Price, PriceTier, Usage])
def test_the_declared_signature_has_the_fields_and_defaults(model: type[Value]) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    (init,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = [argument.arg for argument in init.args.kwonlyargs]
    names = vars(inspect.getmodule(model))
    defaults = [None if default is None else eval(ast.unparse(default), names) for default in init.args.kw_defaults]
    assert arguments == list(model.model_fields)
    fields = model.model_fields.values()
    assert [default is None for default in init.args.kw_defaults] == [field.is_required() for field in fields]
    assert [None if field.is_required() else field.default for field in fields] == defaults
