"""The feedback on a run's page, and the form with thumbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from rl_conductor.trace.feedback import DEFAULT_KEY, MAX_COMMENT_CHARS, Feedback
from rl_conductor_server.auth.keys import ADMINISTRATOR
from rl_conductor_server.endpoints.feedback import THUMBS
from rl_conductor_server.errors import invalid_request


@dataclass(frozen=True)
class FeedbackView:
    """The feedback on one run."""

    entries: Sequence[Feedback]

    @property
    def own(self) -> Feedback | None:
        """The administrator's own rating, which the form replaces."""
        return next((each for each in self.entries if (each.author, each.key) == (ADMINISTRATOR, DEFAULT_KEY)), None)

    @property
    def thumb(self) -> str | None:
        """The thumb of the administrator's own rating; `None` for other scores."""
        scores = {score: name for name, score in THUMBS.items()}
        return None if self.own is None else scores.get(self.own.score)


def parse_feedback(fields: Mapping[str, str]) -> Feedback:
    """Reads the form of the thumbs.

    Raises:
        ApiError: no thumb was pressed, or the comment is too long.
    """
    try:
        return Feedback(
            author=ADMINISTRATOR,
            score=THUMBS[fields["thumb"]],
            comment=fields.get("comment", "").replace("\r\n", "\n").strip(),
            updated=datetime.now(UTC),
        )
    except (KeyError, ValidationError):
        limit = f"at most {MAX_COMMENT_CHARS:,} characters"
        raise invalid_request(f"Choose thumbs up or thumbs down, and write a comment of {limit}.") from None
