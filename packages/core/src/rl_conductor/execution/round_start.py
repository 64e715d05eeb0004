"""Decides the start of a round, without a change to the run: above all, where its plan comes from.

In this order: the continuation of a worker's tool calls, the plan of an interrupted round, the caller's workflow, the
only workflow that the policy allows, the router's single call, the learned workflow, and the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rl_conductor._internal.identity import ByIdentity
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.execution.continuation import digest_subject, subject_error, without_continuation
from rl_conductor.execution.guarding import missing_checks
from rl_conductor.execution.restore import RestoredRound, restore_results
from rl_conductor.planning.fallback import fallback_workflow, single_step
from rl_conductor.planning.routing.router import Router
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.prompting.worker_prompt import with_prompt
from rl_conductor.trace.routing_decision import RoutingDecision
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult
from rl_conductor.types import Continuation, Request
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Workflow

if TYPE_CHECKING:
    from rl_conductor.execution.run import Run


UNWRITTEN = PlanRecord.model_construct(source="planner")
"""The plan of a round before the planner writes it."""


class RoundStart(NamedTuple):
    """The plan and the inputs with which a round starts."""

    space: PlanSpace
    """The plans that the round may have."""
    request: Request
    """The request that workers get."""
    plan: PlanRecord = UNWRITTEN
    """The plan; incomplete if the planner has to write it."""
    continued: Continuation | None = None
    """The continuation whose prompt `request` has in the place of the caller's last user message."""
    results: tuple[StepResult, ...] = ()
    """The results of an interrupted round that are reused."""
    abandoned_calls: tuple[Call, ...] = ()
    """The calls of an interrupted round for the results that are not reused."""
    dropped: tuple[str, ...] = ()
    """Why parts of an interrupted run are not reused."""


def decide_start(
    run: Run, workflow: Workflow | None = None, interrupted: Round | None = None, dropped: Sequence[str] = ()
) -> RoundStart:
    """Decides the plan and the inputs with which the next round of a run starts.

    Args:
        run: the run.
        workflow: the caller's own workflow, for the first round.
        interrupted: the same round of an interrupted run.
        dropped: why rounds of the interrupted run are not reused.

    Raises:
        PolicyError: the policy allows no workflow.
        WorkflowValidationError: `workflow` is not allowed.
    """
    start = _with_known_plan(run, _empty_start(run, dropped), workflow, interrupted)
    if interrupted is not None:
        start = _with_results(run, start, interrupted)
    return start if start.plan.is_complete else start._replace(plan=_new_plan(run, start.space))


def restored_start(run: Run, plan: PlanRecord) -> RoundStart:
    """Returns the start of a round with a plan that was made before.

    Raises:
        PolicyError: the policy allows no workflow.
        WorkflowValidationError: the plan is no longer allowed.
    """
    return _with_restored_plan(run, _empty_start(run), plan)


def restorable_results(run: Run, start: RoundStart, results: Sequence[StepResult]) -> RestoredRound:
    """Selects the results of an earlier attempt at a round that are reused; the other steps run again."""
    workflow = start.plan.workflow
    if workflow is None:
        return RestoredRound((), (), ())
    last = len(workflow.steps) - 1
    missing = {result.index: missing_checks(run.context, result, is_last=result.index == last) for result in results}
    unchecked = {index: ", ".join(map(repr, names)) for index, names in missing.items() if names}
    return restore_results(workflow, results, start.space, run.allowed, unchecked)


def _empty_start(run: Run, dropped: Sequence[str] = ()) -> RoundStart:
    """Returns the start of a round without a plan."""
    return RoundStart(run.space(), without_continuation(run.request), dropped=tuple(dropped))


# ------------------------------------------------------------------------------------ plans that exist


def _with_known_plan(run: Run, start: RoundStart, workflow: Workflow | None, interrupted: Round | None) -> RoundStart:
    """Adds a plan that exists before any planning: a continuation, an interrupted round's, or the caller's."""
    continuation = run.request.continuation
    if continuation is not None:
        reason = _continuation_error(run, start, continuation)
        if reason is None:
            return _with_continuation(start, continuation, _continued_plan(interrupted))
        start = _with_dropped(start, f"tool calls of {continuation.worker!r} are not continued: {reason}")
    if interrupted is not None and interrupted.plan.is_complete and interrupted.plan.source != "continuation":
        try:
            return _with_restored_plan(run, start, interrupted.plan)
        except WorkflowValidationError as error:
            if interrupted.plan.source == "given":  # the caller's own plan is never replaced
                raise
            start = _with_dropped(start, f"the plan of the interrupted run is dropped: {'; '.join(error.violations)}")
    if workflow is not None and not run.rounds:
        space, plan = _given_plan(ByIdentity(start.space), ByIdentity(workflow))
        return start._replace(plan=plan, space=space)
    return start


def _with_dropped(start: RoundStart, *reasons: str) -> RoundStart:
    return start._replace(dropped=(*start.dropped, *reasons))


def _continuation_error(run: Run, start: RoundStart, continuation: Continuation) -> str | None:
    denied = run.allowed.continuation_error(continuation, start.space)
    return denied or subject_error(run.request, continuation)


def _continued_plan(interrupted: Round | None) -> PlanRecord:
    """Returns the record of an interrupted continuation, or a new one; the workflow comes from the request."""
    if interrupted is None or interrupted.plan.source != "continuation":
        return PlanRecord(source="continuation")
    return interrupted.plan


def _with_continuation(start: RoundStart, continuation: Continuation, plan: PlanRecord) -> RoundStart:
    """Adds `plan` with a workflow of one step: the worker that made the tool calls gets their results."""
    space, request = start.space, start.request
    if space.forbidden_flows:  # the prompt holds replies that another worker might not be allowed to read
        space = space.model_copy(update={"allowed": frozenset({continuation.worker})})
    if continuation.prompt is not None:
        request = request.model_copy(update={"messages": with_prompt(request.messages, continuation.prompt)})
    return start._replace(
        plan=plan.model_copy(update={"workflow": single_step(continuation.worker, continuation.inputs)}),
        space=space,
        request=request,
        continued=continuation.model_copy(update={"subject": digest_subject(start.request)}),
    )


def _with_restored_plan(run: Run, start: RoundStart, plan: PlanRecord) -> RoundStart:
    """Adds a plan that was made before.

    Raises:
        WorkflowValidationError: it is no longer allowed.
    """
    continuation = run.request.continuation
    if plan.source == "continuation" and continuation is not None:
        if reason := _continuation_error(run, start, continuation):
            raise WorkflowValidationError(f"tool calls of {continuation.worker!r} are not continued: {reason}")
        return _with_continuation(start, continuation, plan)
    space = start.space
    if plan.workflow is not None:
        if plan.source == "given":  # may replace a plan that the planner wrote, whose calls it then carries
            space = space.relaxed_for(plan.workflow)
        run.allowed.check_workflow(plan.workflow, space)
    return start._replace(plan=plan, space=space)


@lru_cache(maxsize=256)
def _given_plan(space: ByIdentity[PlanSpace], workflow: ByIdentity[Workflow]) -> tuple[PlanSpace, PlanRecord]:
    """Checks a caller's workflow; cached, because callers run the same one again and again.

    Raises:
        WorkflowValidationError: it is not allowed.
    """
    relaxed = space.value.relaxed_for(workflow.value)
    return relaxed, PlanRecord(source="given", workflow=relaxed.check(workflow.value))


def _with_results(run: Run, start: RoundStart, interrupted: Round) -> RoundStart:
    """Adds the results of the interrupted round that are reused.

    The calls of its other steps are abandoned, and so are those that led to its plan if that is replaced.
    """
    if not start.plan.is_complete:
        return start._replace(abandoned_calls=interrupted.calls)
    restored = restorable_results(run, start, interrupted.results)
    keeps_plan = start.plan.source == interrupted.plan.source  # a new plan of the same source is not complete yet
    planning = () if keeps_plan else interrupted.plan.calls
    start = _with_dropped(start, *restored.errors)
    return start._replace(results=restored.results, abandoned_calls=(*planning, *restored.abandoned_calls))


# ------------------------------------------------------------------------------------------- new plans


def _new_plan(run: Run, space: PlanSpace) -> PlanRecord:
    """Returns the only allowed plan, the router's single call, or the learned workflow, else an incomplete plan."""
    if space.leaves_no_choice:
        return PlanRecord(source="single", workflow=fallback_workflow(space, run.pool))
    if run.rounds:
        return PlanRecord(source="planner", planning_reason=run.planner_reason)
    routing = None if run.router is None else _route(run.router, run.request, space)
    if routing is not None and routing.route == "single":
        return PlanRecord(source="router", workflow=single_step(routing.worker), routing=routing)
    workflow, reason = (None, "") if run.selector is None else _learned_workflow(run, run.selector, space)
    if workflow is not None:
        return PlanRecord(source="learned", workflow=workflow, routing=routing)
    return PlanRecord(source="planner", planning_reason=reason or run.planner_reason, routing=routing)


def _route(router: Router, request: Request, space: PlanSpace) -> RoutingDecision:
    """Classifies the request; overruled where the router's worker may not answer alone."""
    decision = router.decide(request)
    if decision.route == "single" and (violations := space.violations(single_step(decision.worker))):
        return decision.model_copy(update={"route": "conductor", "reason": "; ".join(violations)})
    return decision


def _learned_workflow(run: Run, selector: WorkflowSelector, space: PlanSpace) -> tuple[Workflow | None, str]:
    """Returns the learned workflow for the request, or why it does not run.

    It does not where the policy or the limits don't allow it, and for requests of other kinds that the planner may see.
    """
    if not selector.includes(run.request) and run.allowed.may_plan:
        return None, "the request is unlike the questions of the learned workflows"
    workflow = selector.select(run.request)
    violations = space.violations(workflow)
    if violations:
        return None, f"the learned workflow is not allowed: {'; '.join(violations)}"
    return workflow, ""
