"""Delivers the plan of a round as a stream of steps: a known one at once, the planner's while it is written."""

from __future__ import annotations

from contextlib import aclosing
from decimal import Decimal
from typing import TYPE_CHECKING

from rl_conductor.calls.budget import FollowUp
from rl_conductor.calls.failures import format_for_log, log
from rl_conductor.execution.executor import Execution
from rl_conductor.execution.guarding import checks_replies
from rl_conductor.execution.round_context import RoundContext
from rl_conductor.execution.round_start import RoundStart
from rl_conductor.planning.fallback import fallback_workflow
from rl_conductor.planning.later_rounds import collect_previous_rounds
from rl_conductor.planning.plan_stream import PlanRequest, PlanStream
from rl_conductor.trace.events import StepFinished, WorkflowPlanned
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.workflow.limits import DEFAULT_OUTPUT_TOKENS, UpperBound, upper_bound

if TYPE_CHECKING:
    from rl_conductor.execution.run import Run


async def deliver_plan(run: Run, start: RoundStart, execution: Execution) -> PlanStream:
    """Yields the plan of the round that `start` describes, and applies it to the round of `execution`.

    If planning is interrupted, the record of it becomes the execution's plan.

    Raises:
        PolicyError: the planner may not read the request.
    """
    if start.plan.is_complete:
        plan = _announce(run, start, execution, start.plan)
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
                    yield _announce(run, start, execution, _with_fallback(run, start, item))
                else:
                    yield item
    except BaseException:
        interrupted = start.plan.model_copy(update={"errors": (CANCELLED,), "calls": tuple(request.calls)})
        execution.plan = execution.plan or run.guard.move_record(interrupted)
        raise


def apply_plan(run: Run, plan: PlanRecord, context: RoundContext) -> None:
    """Decides whether the worker gets the bare conversation, and whether the answer is streamed."""
    is_last_round = run.number + 1 >= run.limits.rounds
    context.passthrough = plan.is_unplanned and plan.workflow is not None and len(plan.workflow.steps) == 1
    context.stream = run.stream and (plan.is_unplanned or is_last_round)
    if context.stream and run.context.all_guardrails:  # text that was sent can't be taken back
        context.stream = not checks_replies(run.context)


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


def _with_fallback(run: Run, start: RoundStart, plan: PlanRecord) -> PlanRecord:
    """Adds the routing before planning, and the fallback workflow if the planner wrote no plan for the first round."""
    plan = plan.model_copy(update={"routing": start.plan.routing, "planning_reason": start.plan.planning_reason})
    if plan.source != "fallback":
        return plan
    instead = "the answer before stands"
    if not run.rounds:
        workflow = fallback_workflow(start.space, run.pool)
        plan = plan.model_copy(update={"workflow": workflow})
        instead = f"{workflow.steps[-1].worker} answers alone"
    reason = format_for_log(plan.errors[-1], run.planner.model) if plan.errors else "no reason is known"
    log.warning("%s has no plan for round %d, so %s: %s", run.id, run.number + 1, instead, reason)
    return plan


def _announce(run: Run, start: RoundStart, execution: Execution, plan: PlanRecord) -> PlanRecord:
    """Applies the plan to the round and emits it, with the reasons why parts of an interrupted run were dropped."""
    if start.dropped:
        plan = plan.model_copy(update={"errors": (*start.dropped, *plan.errors)})
    plan = run.guard.move_record(plan)
    apply_plan(run, plan, execution.round)
    if run.context.has_listener:
        run.context.emit(WorkflowPlanned(round=run.number, plan=plan))
    return plan
