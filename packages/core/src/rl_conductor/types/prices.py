"""Prices of models, and the cost of a call at a price."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from rl_conductor.types.value import DecimalInput, UserValue, check_amount

MILLION = Decimal(1_000_000)

Rate = Annotated[Decimal, AfterValidator(check_amount), Field(ge=0)]
"""US dollars, per million tokens or per call."""


class PriceTier(UserValue):
    """Rates for the whole call when its input is longer than `above` tokens."""

    above: int
    """Input tokens up to which the usual rates apply."""
    input: Rate
    """Rate of input tokens."""
    output: Rate
    """Rate of output tokens, reasoning included."""
    cached_input: Rate | None = None
    """Rate of cached input; `None` means the full input rate."""
    cache_write: Rate | None = None
    """Rate of input that is written to the cache; `None` means the full input rate."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            above: int,
            input: DecimalInput,  # noqa: A002 - the name of the field
            output: DecimalInput,
            cached_input: DecimalInput | None = None,
            cache_write: DecimalInput | None = None,
        ) -> None: ...


class Price(UserValue):
    """US dollars per million tokens."""

    input: Rate
    """Rate of input tokens."""
    output: Rate
    """Rate of output tokens, reasoning included."""
    cached_input: Rate | None = None
    """Rate of cached input; `None` means the full input rate."""
    cache_write: Rate | None = None
    """Rate of input that is written to the cache; `None` means the full input rate."""
    per_call: Rate = Decimal(0)
    """US dollars added for each call."""
    tiers: tuple[PriceTier, ...] = ()
    """Higher rates for long inputs, in ascending order of `above`."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            input: DecimalInput,  # noqa: A002 - the name of the field
            output: DecimalInput,
            cached_input: DecimalInput | None = None,
            cache_write: DecimalInput | None = None,
            per_call: DecimalInput = 0,
            tiers: tuple[PriceTier, ...] = (),
        ) -> None: ...

    @property
    def is_free(self) -> bool:
        """Whether no call costs anything."""
        return not (self.input or self.output or self.per_call)

    def cost(
        self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> Decimal:
        """Computes the US dollars of one call; `input_tokens` includes `cached_tokens` and `cache_write_tokens`."""
        rates = self._rates(input_tokens)
        cached_rate = rates.input if rates.cached_input is None else rates.cached_input
        write_rate = rates.input if rates.cache_write is None else rates.cache_write
        # Vendors may report more cached than input tokens, which must not lower the cost.
        fresh = max(input_tokens - cached_tokens - cache_write_tokens, 0)
        read = fresh * rates.input + cached_tokens * cached_rate + cache_write_tokens * write_rate
        return self.per_call + (read + output_tokens * rates.output) / MILLION

    def max_cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """Computes the maximum US dollars of one call: no input is cached or all is written, whichever costs more."""
        rates = self._rates(input_tokens)
        rate = rates.input if rates.cache_write is None else max(rates.input, rates.cache_write)
        return self.per_call + (input_tokens * rate + output_tokens * rates.output) / MILLION

    def _rates(self, input_tokens: int) -> Price | PriceTier:
        rates: Price | PriceTier = self
        for tier in self.tiers:
            if input_tokens > tier.above:
                rates = tier
        return rates


FREE = Price.model_construct(input=Decimal(0), output=Decimal(0))
"""The price of models that run locally."""
