"""From outcomes to rewards, a group at a time: the plans that were written for one question. Pure.

With `v` for the reward of any valid plan, `r` for that of a right answer, and `s` for the answer's score (0 or 1 in
most tasks), a plan gets

    0             when it can't be read or may not run
    v + r * s     otherwise
    None          when a call to a worker failed: that says nothing of the plan, so it is left out of its group

The paper has v = 0.5 and r = 0.5, hence 0, 0.5 and 1; its supplement has r = 1, hence 0, 0.5 and 1.5.

`thrift` adds a share of itself to right answers alone: the share of the *other right answers* of the group that were
dearer. Absolute prices would reward the cheapest way to be wrong; ranks among right answers can't. An answer of unknown
cost gets no share and is no rival.

Where a second round was played, the plans of each round are a group of their own, and with a discount `d` those of the
first get

    (1 - d) * r0 + d * r1

where `r0` is what they get above and `r1` is the reward of the plan that was written in view of their answer (paper,
recursion tuning: d = 0.25). A plan that can't be read has no second round and gets 0; where a call failed in either
round, the sum is not known, and the plan is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.train.config import RewardEntry
from rl_conductor.train.outcomes import Outcome

PARTS = {"paper": (0.5, 0.5), "supplement": (0.5, 1.0)}
"""For each kind of reward, that of a valid plan and what a right answer adds."""


def rewards(group: Sequence[Outcome | None], entry: RewardEntry) -> list[float | None]:
    """The reward of each plan of a group, for its own round; `None` leaves it out."""
    shares = thrift_shares(group, entry)
    return [_reward(outcome, entry, share) for outcome, share in zip(group, shares, strict=True)]


def _reward(outcome: Outcome | None, entry: RewardEntry, share: float) -> float | None:
    valid, right = PARTS[entry.kind]
    if outcome is None:
        return None
    if not outcome.valid:
        return 0.0
    return None if outcome.score is None else valid + right * outcome.score + entry.thrift * share


def over_rounds(
    first: Sequence[Outcome], second: Sequence[Outcome | None], entry: RewardEntry, *, discount: float
) -> tuple[list[float | None], list[float | None]]:
    """The rewards of the plans for one question that was given a second round, those of each round.

    Args:
        first: what came of the plans of the first round.
        second: for each, what came of the plan that was written next; `None` where there was no answer to judge.
        entry: what a plan is worth in its own round.
        discount: what the second round counts for in the rewards of the first.
    """
    own, later = rewards(first, entry), rewards(second, entry)
    mixed = [
        reward if outcome is None else _mixed(reward, following, discount)
        for reward, following, outcome in zip(own, later, second, strict=True)
    ]
    return mixed, later


def _mixed(own: float | None, later: float | None, discount: float) -> float | None:
    return None if own is None or later is None else (1 - discount) * own + discount * later


def thrift_shares(group: Sequence[Outcome | None], entry: RewardEntry) -> list[float]:
    """For each right answer, the share of the other right answers that were dearer; ties count half. Else 0."""
    costs = [_cost(outcome, entry) if outcome and outcome.right else None for outcome in group]
    known = [cost for cost in costs if cost is not None]
    others = len(known) - 1
    if others < 1:
        return [0.0] * len(group)
    return [0.0 if cost is None else (_dearer(cost, known) - 0.5) / others for cost in costs]


def _dearer(cost: float, known: Sequence[float]) -> float:
    """How many are dearer; those that cost the same, itself included, count half."""
    return sum((other > cost) + (other == cost) / 2 for other in known)


def _cost(outcome: Outcome, entry: RewardEntry) -> float | None:
    """`None` where the price of a call is not known."""
    match entry.thrift_by:
        case "usd":
            return None if outcome.usage.unpriced_calls else float(outcome.usage.cost)
        case "tokens":
            return outcome.usage.input_tokens + outcome.usage.output_tokens
        case "seconds":
            return outcome.seconds
