"""What the Conductor of a later round is shown of the rounds before, and what it may write then. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.plan_text.forms import Form, render
from rl_conductor.planning.prompts import Review
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.trace import Round
from rl_conductor.types import Card
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import PlanSpace


def reviews(rounds: Sequence[Round], first: PlanSpace, form: Form) -> list[Review]:
    """Each plan that was carried out, as it was written, and the answer it gave.

    Args:
        rounds: oldest first.
        first: the space of the first round.
        form: how a plan is spelled that the caller gave as a workflow.
    """
    return [_review(one, first, form) for one in rounds if one.results]


def later_space(first: PlanSpace, rounds: Sequence[Round], pool: WorkerPool, policy: Policy) -> PlanSpace:
    """What may be planned after `rounds`: the answer may be accepted, and what was replied may be recalled.

    The planner has read an answer, and may pass it on in any subtask: so only those may work who may read it.
    """
    allowed = frozenset(name for name in first.allowed if may_hear(pool[name].card, rounds, pool, policy))
    return first.model_copy(update={"recalled": _heard(rounds), "may_accept": True, "allowed": allowed})


def may_hear(card: Card, rounds: Sequence[Round], pool: WorkerPool, policy: Policy) -> bool:
    """Whether everything that was replied in `rounds` may reach this model."""
    return all(policy.may_read(card, pool[name].card) for name in _heard(rounds))


def _heard(rounds: Sequence[Round]) -> frozenset[str]:
    return frozenset(result.step.worker for one in rounds for result in one.results if result.reply is not None)


def _review(one: Round, first: PlanSpace, form: Form) -> Review:
    plan = one.plan.text or render(one.plan.workflow, first.model_copy(update={"access": "positional"}), form)
    return Review(plan=plan, reply=one.results[-1].text)
