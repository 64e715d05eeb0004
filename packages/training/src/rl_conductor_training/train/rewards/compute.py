"""Computes rewards from scored plans, a group at a time: the plans sampled for one question. Pure.

With `v` for the reward of any valid plan, `r` for that of a right answer, and `s` for the answer's score (0 or 1 in
most tasks), the reward of a plan is

    0             when it can't be parsed or may not run
    v + r * s     otherwise
    None          when a call to a worker failed: the plan is left out of its group, since the failure is not its fault

The paper has v = 0.5 and r = 0.5, hence 0, 0.5 and 1; its supplement has r = 1, hence 0, 0.5 and 1.5.

`cost_bonus` is added to right answers only, times the share of the *other right answers* of the group that cost more.
Absolute prices would reward the cheapest way to be wrong; ranks among right answers can't. An answer of unknown cost
gets no bonus and is left out of the comparison.

With a second round, the plans of each round are a group of their own, and with a discount `d` the reward of the first
round is

    (1 - d) * r0 + d * r1

where `r0` is the reward as above and `r1` that of the plan written after seeing its answer (paper, recursion tuning:
d = 0.25). A plan that can't be parsed has no second round and gets 0; where a call failed in either round, the sum is
unknown, and the plan is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor_training.train.config import RewardSettings
from rl_conductor_training.train.rollouts.scoring import ScoredPlan

WEIGHTS = {"paper": (0.5, 0.5), "supplement": (0.5, 1.0)}
"""The rewards `v` of a valid plan and `r` of a right answer, by kind of reward."""


def group_rewards(group: Sequence[ScoredPlan | None], settings: RewardSettings) -> list[float | None]:
    """Computes the reward of each plan of a group, for its own round; `None` leaves it out."""
    ranks = cost_ranks(group, settings)
    return [_reward(plan, settings, rank) for plan, rank in zip(group, ranks, strict=True)]


def _reward(plan: ScoredPlan | None, settings: RewardSettings, cost_rank: float) -> float | None:
    valid, right = WEIGHTS[settings.kind]
    if plan is None:
        return None
    if not plan.valid:
        return 0.0
    return None if plan.score is None else valid + right * plan.score + settings.cost_bonus * cost_rank


def two_round_rewards(
    first: Sequence[ScoredPlan], second: Sequence[ScoredPlan | None], settings: RewardSettings, *, discount: float
) -> tuple[list[float | None], list[float | None]]:
    """Computes the rewards of the plans for one question with a second round, for each round.

    Args:
        first: the scored plans of the first round.
        second: for each of them, the scored plan of the second round; `None` where the first has no answer.
        settings: the reward of a plan in its own round.
        discount: weight of the second round in the rewards of the first.
    """
    own, later = group_rewards(first, settings), group_rewards(second, settings)
    discounted = [
        reward if plan is None else _discounted(reward, next_reward, discount)
        for reward, next_reward, plan in zip(own, later, second, strict=True)
    ]
    return discounted, later


def _discounted(own: float | None, later: float | None, discount: float) -> float | None:
    return None if own is None or later is None else (1 - discount) * own + discount * later


def cost_ranks(group: Sequence[ScoredPlan | None], settings: RewardSettings) -> list[float]:
    """Computes for each right answer the share of the others that cost more; ties count half. 0 for other plans."""
    costs = [_cost(plan, settings) if plan and plan.right else None for plan in group]
    priced = [cost for cost in costs if cost is not None]
    others = len(priced) - 1
    if others < 1:
        return [0.0] * len(group)
    return [0.0 if cost is None else (_count_higher_costs(cost, priced) - 0.5) / others for cost in costs]


def _count_higher_costs(cost: float, costs: Sequence[float]) -> float:
    """Counts the higher costs; equal ones, including `cost` itself, count half."""
    return sum((other > cost) + (other == cost) / 2 for other in costs)


def _cost(plan: ScoredPlan, settings: RewardSettings) -> float | None:
    """Returns the cost of a plan by `settings.cost_metric`; `None` where the price of a call is unknown."""
    match settings.cost_metric:
        case "usd":
            return None if plan.usage.unpriced_calls else float(plan.usage.cost)
        case "tokens":
            return plan.usage.input_tokens + plan.usage.output_tokens
        case "seconds":
            return plan.seconds
