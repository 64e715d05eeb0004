"""What a whole run amounts to: its first steps against its last. Pure.

Questions differ from step to step, so what counts is how much steps differ, by Welch's t test; a proof is the
benchmark on held-out questions, not this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Literal, Self

from rl_conductor.errors import ConfigError
from rl_conductor.types import Value

try:
    from scipy.special import stdtrit
except ImportError as missing:
    raise ConfigError("training needs scipy: pip install 'rl-conductor[train]'") from missing

SURE = 0.975
"""How sure the direction of a change must be: where there is none, one run in forty is told to have risen."""
LEAST = 5
"""Steps of each part; fewer don't tell how much steps differ."""


class Share(Value):
    """A share of the plans of a few steps."""

    value: float
    """The mean over the steps."""
    error: float
    """Its standard error over the steps, but never less than that of drawing so many plans."""
    steps: int
    """Those that know the share."""

    @classmethod
    def over(cls, shares: Sequence[float], plans: Sequence[float]) -> Self | None:
        """The mean of `shares`, each of so many plans; `None` of none."""
        if not shares:
            return None
        drawn = _variance_of_drawing(shares, plans)
        told = variance(shares) / len(shares) if len(shares) > 1 else drawn
        return cls(value=fmean(shares), error=math.sqrt(max(told, drawn)), steps=len(shares))


class Part(Value):
    """A few steps of a run; `None` stands for what they can't tell."""

    steps: int
    valid: Share | None
    right_if_valid: Share | None
    """Over the steps that had a valid plan."""

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, float]]) -> Self:
        """What the `diagnostics` of these steps amount to."""
        return cls(
            steps=len(steps),
            valid=_share(steps, "valid", of="plans"),
            right_if_valid=_share(steps, "right_if_valid", of="scored"),
        )


Finding = Literal["gain", "worse", "format only", "no gain", "too short"]


class Verdict(Value):
    """What training changed, from its first steps to its last."""

    first: Part
    last: Part
    finding: Finding

    @property
    def text(self) -> str:
        """In words; after `±` the standard error of the change."""
        first, last = self.first, self.last
        return (
            f"{FINDINGS[self.finding]}: right given a valid plan {_told(first.right_if_valid, last.right_if_valid)},"
            f" valid {_told(first.valid, last.valid)}, first {first.steps} against last {last.steps} steps"
        )


FINDINGS: dict[Finding, str] = {
    "gain": "Plans became better",
    "worse": "Plans became worse",
    "format only": "The gain is format only: more plans are valid, but valid ones are not shown to be better",
    "no gain": "No gain",
    "too short": "Too few steps to tell",
}


def verdict(steps: Sequence[Mapping[str, float]]) -> Verdict | None:
    """What the `diagnostics` of a run's steps say; `None` without any step.

    The first quarter of the steps is held against the last; in a short run `LEAST` steps each, or its halves.
    """
    if not steps:
        return None
    window = max(1, len(steps) // 4, min(LEAST, len(steps) // 2))
    first, last = Part.of(steps[:window]), Part.of(steps[-window:])
    return Verdict(first=first, last=last, finding=_finding(first, last))


def _share(steps: Sequence[Mapping[str, float]], name: str, *, of: str) -> Share | None:
    knowing = [step for step in steps if name in step and of in step]
    return Share.over([step[name] for step in knowing], [step[of] for step in knowing])


def _finding(first: Part, last: Part) -> Finding:
    right = _change(first.right_if_valid, last.right_if_valid)
    valid = _change(first.valid, last.valid)
    if "fell" in {right, valid}:
        return "worse"
    if right == "rose":
        return "gain"
    if valid == "rose":
        return "format only"
    return "too short" if right is None else "no gain"


def _change(before: Share | None, after: Share | None) -> Literal["rose", "fell", "stayed"] | None:
    """What became of a share, beyond what chance does; `None` where too few steps know it."""
    if before is None or after is None or min(before.steps, after.steps) < LEAST:
        return None
    chance = stdtrit(_freedom(before, after), SURE) * math.hypot(before.error, after.error)
    if abs(after.value - before.value) <= chance:
        return "stayed"
    return "rose" if after.value > before.value else "fell"


def _freedom(one: Share, other: Share) -> float:
    """Degrees of freedom of a difference: Welch, "The generalization of 'Student's' problem" (1947)."""
    parts = [share.error**2 for share in (one, other)]
    return sum(parts) ** 2 / sum(part**2 / (share.steps - 1) for part, share in zip(parts, (one, other), strict=True))


def _variance_of_drawing(shares: Sequence[float], plans: Sequence[float]) -> float:
    """The variance of the mean of `shares` if each plan were a coin of one kind.

    Its share is Laplace's, so that ten plans of which all were right leave a doubt.
    """
    right = sum(share * count for share, count in zip(shares, plans, strict=True))
    coin = (right + 1) / (sum(plans) + 2)
    return coin * (1 - coin) * sum(1 / count for count in plans) / len(shares) ** 2


def _told(before: Share | None, after: Share | None) -> str:
    if before is None or after is None:
        return f"{_percent(before)} → {_percent(after)}"
    return f"{_percent(before)} → {_percent(after)} (± {math.hypot(before.error, after.error):.1%})"


def _percent(share: Share | None) -> str:
    return "unknown" if share is None else f"{share.value:.1%}"
