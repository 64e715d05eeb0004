"""`Domain`: recognises requests of other kinds than the questions that workflows were learned from."""

from __future__ import annotations

from pydantic import Field

from rl_conductor.planning.routing.linear_score import Finite, LinearScore
from rl_conductor.text.features import text_features
from rl_conductor.types import Request, Value, prompt_in


class Domain(Value):
    """A linear classifier of questions against ordinary requests, by the words of the user's last message."""

    score: LinearScore
    threshold: Finite
    """Minimum score of a question of the domain."""
    accepted: float = Field(ge=0, le=1)
    """Share of the questions that a classifier recognises which was trained without their group."""
    refused: float = Field(ge=0, le=1)
    """Share of ordinary requests that a classifier refuses which was trained without them."""

    def includes(self, request: Request) -> bool:
        """Returns whether the request is like the questions of the domain."""
        return self.score.score(text_features(prompt_in(request.messages))) >= self.threshold
