"""`LinearScore`: a linear classifier of requests, which the training package trains and this one only applies."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rl_conductor.text.features import FEATURES, dot_product
from rl_conductor.types import Value

Finite = Annotated[float, Field(allow_inf_nan=False)]


class LinearScore(Value):
    """The weights of a linear classifier."""

    bias: Finite = 0.0
    weights: dict[Annotated[int, Field(ge=0, lt=FEATURES)], Finite] = Field(default_factory=dict)
    """Weights by feature of `text_features`; missing ones are 0."""

    def score(self, features: dict[int, float]) -> float:
        """Returns the score of a message with these features."""
        return self.bias + dot_product(features, self.weights)
