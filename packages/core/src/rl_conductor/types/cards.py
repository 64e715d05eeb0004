"""Cards, which describe workers to the planner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.types.prices import Price
from rl_conductor.types.value import Names, UserValue

Roster = Literal["ordinals", "anonymous", "cards"]
"""How the planner's prompt lists the workers: `cards` with all fields of their cards; `anonymous` without names, and
with descriptions only for workers without strengths; `ordinals` as bare numbers in a fixed order (paper). A trained
planner needs the roster that it was trained with."""
Wording = Literal["brief", "full"]
"""How the planner's prompt is worded. The brief wording takes half of the tokens, and the prompts of one conversation
begin alike; small models need the full one. A trained planner needs the wording that it was trained with."""


class Card(UserValue):
    """Describes a worker, for planning prompts and for policy selectors."""

    name: str
    """The worker's name."""
    description: str = ""
    """Description of the worker, set by the user or by the worker itself."""
    strengths: str = ""
    """The worker's strengths, in one line."""
    accuracy: dict[str, float] = Field(default_factory=dict)
    """Measured accuracy by domain, 0 to 1."""
    price: Price | None = None
    """The price of its calls, if known."""
    latency: float | None = None
    """Median duration of a call in seconds."""
    tags: Names = frozenset()
    """Labels for policies, such as `external`."""
    region: str | None = None
    """The region in which it processes data, such as `eu`, for policies."""

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy over the measured domains; 0 when there are none."""
        return sum(self.accuracy.values()) / len(self.accuracy) if self.accuracy else 0.0
