"""From outcomes to rewards, a group at a time: the plans that were written for one question. Pure.

With `v` for the reward of any valid plan, `r` for that of a right answer, and `s` for the answer's score (0 or 1 in
most tasks), a plan gets

    0             when it can't be read or may not run
    v + r * s     otherwise
    None          when a call to a worker failed: that says nothing of the plan, so it is left out of its group

The paper has v = 0.5 and r = 0.5, hence 0, 0.5 and 1; its supplement has r = 1, hence 0, 0.5 and 1.5.

`thrift` adds a share of itself to right answers alone: the share of the *other right answers* of the group that were
dearer. Absolute prices would reward the cheapest way to be wrong; ranks among right answers can't.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.train.config import RewardEntry
from rl_conductor.train.outcomes import Outcome

PARTS = {"paper": (0.5, 0.5), "supplement": (0.5, 1.0)}
"""For each kind of reward, that of a valid plan and what a right answer adds."""


def rewards(group: Sequence[Outcome], entry: RewardEntry) -> list[float | None]:
    """The reward of each plan of a group; `None` leaves it out."""
    shares = thrift_shares(group, entry)
    return [_reward(outcome, entry, share) for outcome, share in zip(group, shares, strict=True)]


def _reward(outcome: Outcome, entry: RewardEntry, share: float) -> float | None:
    valid, right = PARTS[entry.kind]
    if not outcome.valid:
        return 0.0
    return None if outcome.score is None else valid + right * outcome.score + entry.thrift * share


def thrift_shares(group: Sequence[Outcome], entry: RewardEntry) -> list[float]:
    """For each right answer, the share of the other right answers that were dearer; ties count half. Else 0."""
    costs = [_cost(outcome, entry) if outcome.right else None for outcome in group]
    known = [cost for cost in costs if cost is not None]
    others = len(known) - 1
    if others < 1:
        return [0.0] * len(group)
    return [0.0 if cost is None else (_dearer(cost, known) - 0.5) / others for cost in costs]


def _dearer(cost: float, known: Sequence[float]) -> float:
    """How many are dearer; those that cost the same, itself included, count half."""
    return sum((other > cost) + (other == cost) / 2 for other in known)


def _cost(outcome: Outcome, entry: RewardEntry) -> float:
    match entry.thrift_by:
        case "usd":
            return float(outcome.usage.cost)
        case "tokens":
            return outcome.usage.input_tokens + outcome.usage.output_tokens
        case "seconds":
            return outcome.seconds
