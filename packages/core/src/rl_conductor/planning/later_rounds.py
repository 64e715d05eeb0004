"""The second and later planning rounds (the paper's recursion): the planner's prompt, and the plan space."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.plan_text.forms import Form, render
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.planner_prompt import PreviousRound
from rl_conductor.prompting.worker_prompt import Evidence
from rl_conductor.trace.trace import Round
from rl_conductor.types import Card
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.policy import Policy


def collect_previous_rounds(rounds: Sequence[Round], first: PlanSpace, form: Form) -> list[PreviousRound]:
    """Collects the plans that were executed, as written, with the replies of their steps.

    Args:
        rounds: the rounds so far, oldest first.
        first: the plan space of the first round.
        form: the output format used to render workflows that the caller passed.
    """
    return [_previous_round(executed, first, form) for executed in rounds if executed.results]


def next_round_space(first: PlanSpace, rounds: Sequence[Round], pool: WorkerPool, policy: Policy) -> PlanSpace:
    """Returns the plan space after `rounds`, in which plans may accept the answer or recall earlier replies.

    The planner may quote the answer in any subtask, so only workers that may read it are allowed.
    """
    allowed = frozenset(name for name in first.allowed if can_read(pool[name].card, rounds, pool, policy))
    return first.model_copy(update={"recallable": replied_workers(rounds), "may_accept": True, "allowed": allowed})


def can_read(card: Card, rounds: Sequence[Round], pool: WorkerPool, policy: Policy) -> bool:
    """Returns whether the policy lets the model with this card read every reply in `rounds`."""
    return all(policy.may_read(card, pool[name].card) for name in replied_workers(rounds))


def replied_workers(rounds: Sequence[Round]) -> frozenset[str]:
    """Returns the workers that wrote the replies in `rounds`."""
    results = (result for executed in rounds for result in executed.results)
    return frozenset(result.step.worker for result in results if result.reply is not None)


def _previous_round(executed: Round, first: PlanSpace, form: Form) -> PreviousRound:
    record = executed.plan
    plan = record.text or render(record.workflow, first.model_copy(update={"access": "positional"}), form)
    *earlier, last = executed.results
    steps = (
        Evidence.of(str(result.index + 1), result)
        for result in earlier
        if result.status != "skipped" and result.step.worker in first.roster
    )
    return PreviousRound(plan=plan, reply=last.text, steps=tuple(steps))
