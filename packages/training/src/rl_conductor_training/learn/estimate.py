"""Estimates the calls, tokens, dollars and minutes of a learning run before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Dollars, Value
from rl_conductor_training.learn.data import LearnData
from rl_conductor_training.learn.search.candidates import build_candidates, descriptions
from rl_conductor_training.learn.search.explore import PROPOSALS
from rl_conductor_training.learn.search.plan import MAX_WORKFLOWS, halving_rounds
from rl_conductor_training.tasks import Sample

CHARS_PER_TOKEN = 4
PROMPT_TOKENS = 100
"""Tokens of a worker's prompt besides the question and earlier replies."""
REPLY_TOKENS = 200
"""Expected tokens of a reply."""
PLANNER_TOKENS = 1_500
"""Expected tokens of a planner call, prompt and plan."""
DEFAULT_SECONDS = 3.0
"""Expected seconds of a call to a worker whose card states no latency."""


class CostEstimate(Value):
    """The expected cost of a learning run. It is rough: real replies may be several times longer or shorter."""

    calls: int
    tokens: int
    usd: Dollars | None
    """US dollars; `None` if the price of a worker is unknown."""
    minutes: float


def estimate_cost(data: LearnData, pool: WorkerPool, *, max_steps: int, seed: int, concurrency: int) -> CostEstimate:
    """Estimates a run that spends no more than the search needs; the caps may end it earlier."""
    train, validation, heldout = (len(task.samples) for task in (data.train, data.validation, data.heldout.task))
    candidates = build_candidates(descriptions(pool), (), max_steps=max_steps, seed=seed)
    mean_steps = sum(len(workflow.steps) for workflow in candidates) / len(candidates)
    workflow_runs, covered = 0, 0
    for size, count in halving_rounds(len(candidates), train):
        workflow_runs += (size + len(pool)) * (count - covered)
        covered = count
    workflow_runs += (MAX_WORKFLOWS + len(pool)) * (validation + heldout)
    planner_calls = PROPOSALS + 2 * heldout
    worker_calls = int(workflow_runs * mean_steps) + 2 * planner_calls
    calls = worker_calls + planner_calls
    input_tokens = PROMPT_TOKENS + REPLY_TOKENS // 2 + _mean_question_tokens(data.train.samples)
    tokens = worker_calls * (input_tokens + REPLY_TOKENS) + planner_calls * PLANNER_TOKENS
    prices = [_price(worker, input_tokens) for worker in pool.values()]
    usd = None if None in prices else sum(filter(None, prices), Decimal(0)) / len(prices) * calls
    seconds = [worker.card.latency or DEFAULT_SECONDS for worker in pool.values()]
    minutes = calls * sum(seconds) / len(seconds) / concurrency / 60
    return CostEstimate(calls=calls, tokens=tokens, usd=usd, minutes=minutes)


def add_search(estimate: CostEstimate, runs: int, seconds: float = 0.0) -> CostEstimate:
    """Adds the cost of the learners' own searches.

    Args:
        estimate: the estimate without them.
        runs: runs with a planner, each with a call for planning and reflection and two to workers.
        seconds: seconds of work without any call.
    """
    calls = runs * 3
    share = calls / estimate.calls
    return CostEstimate(
        calls=estimate.calls + calls,
        tokens=estimate.tokens + runs * PLANNER_TOKENS + round(estimate.tokens * share * 2 / 3),
        usd=None if estimate.usd is None else estimate.usd * (1 + Decimal(str(round(share, 6)))),
        minutes=estimate.minutes * (1 + share) + seconds / 60,
    )


def _price(worker: Worker, input_tokens: int) -> Decimal | None:
    price = worker.card.price
    return None if price is None else price.max_cost(input_tokens=input_tokens, output_tokens=REPLY_TOKENS)


def _mean_question_tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.question) for sample in samples) // max(len(samples), 1) // CHARS_PER_TOKEN
