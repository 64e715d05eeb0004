"""Counts masked plans by their reason, so that failed workers are not taken for wrong plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import Field

from rl_conductor._internal.formatting import counted
from rl_conductor.errors import ConductorError
from rl_conductor.types import Value
from rl_conductor_training.train.rollouts.scoring import ScoredPlan

MAX_REASONS = 3
"""Maximum number of reasons in a text."""
MAX_REASON_CHARS = 300
"""Maximum length of a reason in a text."""


class MaskedPlans(Value):
    """The plans that were masked, because a call to a worker or a judge failed."""

    reasons: dict[str, int] = Field(default_factory=dict)
    """The number of plans for each reason, the most frequent first."""

    @classmethod
    def of(cls, reasons: Iterable[str]) -> Self:
        """Counts the reasons of all masked plans."""
        return cls(reasons=dict(Counter(reasons).most_common()))

    @property
    def text(self) -> str:
        """The number of plans and the most frequent reasons in words; empty without any."""
        if not self.reasons:
            return ""
        frequent = [f"{count} × {_shortened(reason)}" for reason, count in self.reasons.items()][:MAX_REASONS]
        if others := len(self.reasons) - len(frequent):
            frequent.append(counted(others, "other reason"))
        plans = counted(sum(self.reasons.values()), "plan")
        return f"{plans} left out, because a call to a worker or a judge failed ({'; '.join(frequent)})"


class NothingScoredError(ConductorError):
    """Most plans of a step were masked and the others are invalid, so there is nothing to learn from."""

    def __init__(self, step: int, masked: MaskedPlans) -> None:
        super().__init__(
            f"step {step} has no plan that could be scored: {masked.text}. The state before it is saved:"
            " the same command repeats it"
        )


def ensure_scored(step: int, plans: Sequence[ScoredPlan]) -> None:
    """Checks that workers and judges left something to learn from; of a few valid plans, all may fail by chance.

    Raises:
        NothingScoredError: most plans were masked, and none has a score.
    """
    masked = [plan.explanation for plan in plans if plan.masked]
    if len(masked) > len(plans) / 2 and all(plan.score is None for plan in plans):
        raise NothingScoredError(step, MaskedPlans.of(masked))


def _shortened(reason: str) -> str:
    return " ".join(reason.split())[:MAX_REASON_CHARS]
