"""The linear classifiers of requests, and the features of a request other than the words of its last message.

They are trained in the training package and stored as plain JSON; this package only applies them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rl_conductor.text.features import FEATURES, dot_product
from rl_conductor.types import Request, Value

Finite = Annotated[float, Field(allow_inf_nan=False)]


class LinearScore(Value):
    """The weights of a linear classifier."""

    bias: Finite = 0.0
    weights: dict[Annotated[int, Field(ge=0, lt=FEATURES)], Finite] = Field(default_factory=dict)
    """Weights by feature of `text_features`; missing ones are 0."""

    def score(self, features: dict[int, float]) -> float:
        """Returns the score of a message with these features."""
        return self.bias + dot_product(features, self.weights)


def request_features(request: Request) -> frozenset[str]:
    """Returns the names of the request's features other than the words of the last message."""
    features = {
        "images": "images" in request.needs,
        "files": "files" in request.needs,
        "tools": bool(request.tools),
        "a format of the answer": request.response_format is not None,
        "earlier turns": any(message.role in ("assistant", "tool") for message in request.messages),
    }
    return frozenset(name for name, is_present in features.items() if is_present)
