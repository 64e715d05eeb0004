"""Delivers the plan of a round as a stream of steps: a known one at once, the planner's while it is written."""

from __future__ import annotations

from contextlib import aclosing
from decimal import Decimal
from typing import TYPE_CHECKING

from rl_conductor.calls.budget import FollowUp
from rl_conductor.execution.executor import RoundExecutor
from rl_conductor.execution.plan_source import RoundStart, with_fallback
from rl_conductor.planning.later_rounds import collect_previous_rounds
from rl_conductor.planning.plan_stream import PlanRequest, PlanStream
from rl_conductor.trace.events import StepFinished, WorkflowPlanned
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS, UpperBound, upper_bound

if TYPE_CHECKING:
    from rl_conductor.execution.run import Run


async def deliver_plan(run: Run, start: RoundStart, executor: RoundExecutor) -> PlanStream:
    """Yields the plan of the round that `start` describes, and applies it to the round of `executor`.

    If planning is interrupted, the record of it becomes the executor's plan.

    Raises:
        PolicyError: the planner may not read the request.
    """
    if start.plan.is_complete:
        plan = _announce(run, start, executor, start.plan)
        for result in start.results:
            run.context.emit(StepFinished(round=run.number, result=result))
        yield plan
        return
    run.allowed.check_planner_access()
    request = _plan_request(run, start)
    try:
        async with aclosing(run.planner.stream(request)) as items:
            async for item in items:
                if isinstance(item, PlanRecord):
                    yield _announce(run, start, executor, with_fallback(run, start, item))
                else:
                    yield item
    except BaseException:
        interrupted = start.plan.model_copy(update={"errors": (CANCELLED,), "calls": tuple(request.calls)})
        executor.plan = executor.plan or run.guard.move_record(interrupted)
        raise


def _plan_request(run: Run, start: RoundStart) -> PlanRequest:
    return PlanRequest(
        run=run.context,
        conversation=run.request.messages,
        space=run.planner.plannable(start.space),
        cards=run.pool.cards,
        round_index=run.number,
        previous_rounds=collect_previous_rounds(run.rounds, run.allowed.first_space, run.planner.plan_form),
        follow_up=_smallest_answer(run, start) if run.context.budget.counts_calls else None,
    )


def _smallest_answer(run: Run, start: RoundStart) -> FollowUp | None:
    """Returns the smallest call that may answer the request after a plan; `None` if that depends on the plan.

    It does where steps may see only parts of the request, and where agents answer, whose own calls are reserved.
    """
    space, request = start.space, start.request
    workers = [run.pool[name] for name in space.final_workers]
    if space.inputs or space.attachments or any(worker.model.capabilities.delegates for worker in workers):
        return None
    answers: list[FollowUp] = []
    input_tokens = upper_bound(request, None).input_tokens
    for worker in workers:
        output_tokens = request.sampling.max_tokens or worker.sampling.max_tokens or DEFAULT_OUTPUT_TOKENS
        price = worker.model.price
        cost = None if price is None else price.max_cost(input_tokens=input_tokens, output_tokens=output_tokens)
        answers.append(FollowUp(worker.model.name, UpperBound(input_tokens, output_tokens, cost)))
    return min(answers, key=_size, default=None)


def _size(answer: FollowUp) -> tuple[bool, Decimal, int]:
    """Returns the sort key of an answer: its maximum cost, then its tokens; unknown prices come last."""
    return answer.bound.cost is None, answer.amount.usd, answer.amount.tokens


def _announce(run: Run, start: RoundStart, executor: RoundExecutor, plan: PlanRecord) -> PlanRecord:
    """Applies the plan to the round and emits it, with the reasons why parts of an interrupted run were dropped."""
    if start.dropped:
        plan = plan.model_copy(update={"errors": (*start.dropped, *plan.errors)})
    plan = run.guard.move_record(plan)
    executor.round.apply(plan)
    if run.context.has_listener:
        run.context.emit(WorkflowPlanned(round=run.number, plan=plan))
    return plan
