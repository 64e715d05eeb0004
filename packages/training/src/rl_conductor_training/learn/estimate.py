"""Estimates a learning run before anything is spent: the plan of the search, with the usual cost of calls."""

from __future__ import annotations

from decimal import Decimal

from rl_conductor.conductor import Conductor
from rl_conductor.types import Price
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.learn.data import LearnData
from rl_conductor_training.learn.learners.base import SearchNeeds
from rl_conductor_training.learn.search.candidates import build_candidates, descriptions, single_workers
from rl_conductor_training.learn.search.costs import CallCosts, Cost
from rl_conductor_training.learn.search.explore import PROPOSALS
from rl_conductor_training.learn.search.plan import SearchSizes, plan_search
from rl_conductor_training.learn.settings import LearnSettings
from rl_conductor_training.spending import DEFAULT_SECONDS, PROMPT_TOKENS, CostEstimate, mean_question_tokens
from rl_conductor_training.tasks import Task

REPLY_TOKENS = 80
"""Usual tokens of a worker's reply: more than a bare answer, and less than one with all of its reasoning."""
PLANNER_TOKENS = 600
"""Usual tokens of a planner's prompt, with its examples."""
VERDICTS = 2
"""Calls of a judge for each answer."""


def estimate_cost(
    data: LearnData, conductor: Conductor, settings: LearnSettings, needs: SearchNeeds, limits: Limits
) -> CostEstimate:
    """Estimates the most thorough search within the caps, and its proof; steps that workflows share are paid once.

    Args:
        data: the questions.
        conductor: the workers and the planner.
        settings: the seed, the concurrency and the number of steps.
        needs: what the learners' own searches need.
        limits: the caps, which may leave room for a smaller search only.
    """
    workers = descriptions(conductor.pool)
    sizes = SearchSizes(
        build_candidates(workers, (), max_steps=settings.max_steps, seed=settings.seed),
        single_workers([*workers]),
        train=len(data.train.samples),
        validation=len(data.validation.samples),
        heldout=data.heldout.size,
        learner_runs=needs.runs,
        training_seconds=needs.seconds,
    )
    costs, is_priced = _usual_costs(conductor, data.task, settings.concurrency)
    needed = plan_search(sizes, costs, limits, costs.planner * PROPOSALS).needed
    estimate = CostEstimate(
        calls=round(needed.calls),
        tokens=round(needed.tokens),
        usd=Decimal(str(round(needed.usd, 6))) if is_priced else None,
        minutes=needed.seconds / 60,
    )
    return estimate.within(limits)  # not even the smallest search may fit


def _usual_costs(conductor: Conductor, task: Task, concurrency: int) -> tuple[CallCosts, bool]:
    """Returns the usual costs of a plan and of a judged step of each worker, and whether all prices are known."""
    prices: list[Price | None] = []

    def cost(price: Price | None, input_tokens: int, output_tokens: int, seconds: float = DEFAULT_SECONDS) -> Cost:
        prices.append(price)
        usd = price.cost(input_tokens=input_tokens, output_tokens=output_tokens) if price else 0
        return Cost(usd=float(usd), tokens=input_tokens + output_tokens, calls=1, seconds=seconds / concurrency)

    question_tokens = PROMPT_TOKENS + mean_question_tokens(task.samples)
    judged = sum("judge" in sample.details for sample in task.samples)
    verdicts = Cost()
    if judged:
        verdict = cost(task.judge_price, question_tokens + 2 * REPLY_TOKENS, 1)
        verdicts = verdict * (VERDICTS * judged / len(task.samples))
    cards = {name: worker.card for name, worker in conductor.pool.items()}
    input_tokens = question_tokens + REPLY_TOKENS // 2
    steps = {
        name: cost(card.price, input_tokens, REPLY_TOKENS, card.latency or DEFAULT_SECONDS) + verdicts
        for name, card in cards.items()
    }
    planner = cost(conductor.planner.model.price, PLANNER_TOKENS, REPLY_TOKENS)
    return CallCosts(steps, planner), None not in prices
