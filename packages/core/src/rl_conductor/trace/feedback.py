"""`Feedback`: a rating of a run's answer, by its user or by an administrator. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from rl_conductor.types import Text, Value

DEFAULT_KEY = "user_score"
MAX_COMMENT_CHARS = 2_000
POSITIVE_SCORE = 0.5
"""The lowest score that counts as positive."""

FeedbackKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Name of a criterion, such as `user_score` or `correctness`."""
UnitScore = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A score from 0, useless, to 1, right."""
Comment = Annotated[Text, Field(max_length=MAX_COMMENT_CHARS)]


class Feedback(Value):
    """One author's rating of a run's answer by one criterion."""

    author: str
    """The API key that sent it, or `@administrator`."""
    key: FeedbackKey = DEFAULT_KEY
    """The criterion."""
    score: UnitScore
    """From 0, useless, to 1, right."""
    comment: Comment = ""
    """The author's own words."""
    updated: datetime
    """Time of the last change, in UTC."""

    @property
    def is_positive(self) -> bool:
        """Whether the score counts as positive."""
        return self.score >= POSITIVE_SCORE
