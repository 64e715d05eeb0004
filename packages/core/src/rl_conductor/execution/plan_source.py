"""Decides where the plan of the next round comes from: `decide_start` takes the first of these sources that has one.

    continuation    the worker goes on after its tool calls, whose results are in the request
    any             the plan of an interrupted round that is resumed
    given           the caller's workflow, in the first round
    single          the only workflow that the policy allows
    router          one call of the router's worker, in the first round
    learned         the learned workflow for the request, in the first round
    planner         the planner writes a plan now; `plan_delivery` yields its steps while it does
    fallback        the simplest workflow, in the first round, if the planner wrote no plan: `with_fallback`

The names are those of `PlanRecord.source`. The first three plans exist already, so that results of an interrupted round
may be reused with them; `restore` selects these, and before that the rounds of an interrupted run that are reused.

Decided elsewhere: whether there is a next round (`Run.may_continue`), and whether a trained planner leaves the request
to its general one (`Planner.for_request`, once for the whole run). `Stepwise` has a plan and uses `restored_start`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rl_conductor._internal.identity import ByIdentity
from rl_conductor.calls.failures import format_for_log, log
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.execution.continuation import digest_subject, subject_error, without_continuation
from rl_conductor.execution.guarding import missing_checks
from rl_conductor.execution.restore import RestoredRound, restore_results
from rl_conductor.planning.fallback import fallback_workflow, single_step
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
    """Decides the plan and the inputs with which the next round of a run starts, without a change to the run.

    Args:
        run: the run.
        workflow: the caller's own workflow, for the first round.
        interrupted: the same round of an interrupted run.
        dropped: why rounds of the interrupted run are not reused.

    Raises:
        PolicyError: the policy allows no workflow.
        WorkflowValidationError: `workflow` is not allowed.
    """
    sources = _Sources(run, workflow, interrupted, _empty_start(run, dropped))
    existing = sources.continuation() or sources.interrupted_plan() or sources.callers_workflow()
    if existing is not None:
        return existing if interrupted is None else _with_results(run, existing, interrupted)
    new = sources.only_workflow() or sources.routed_call() or sources.learned_workflow() or sources.planner()
    return new if interrupted is None else new._replace(abandoned_calls=interrupted.calls)


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


def with_fallback(run: Run, start: RoundStart, plan: PlanRecord) -> PlanRecord:
    """Adds the fallback to the planner's record if it wrote no plan, and what was decided before it planned.

    Only the first round has a fallback workflow. In a later one, the answer before stands.
    """
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


def _empty_start(run: Run, dropped: Sequence[str] = ()) -> RoundStart:
    """Returns the start of a round without a plan."""
    return RoundStart(run.space(), without_continuation(run.request), dropped=tuple(dropped))


@dataclass(slots=True)
class _Sources:
    """The sources of a plan, a method each: it returns the start with its plan, or `None` and keeps the reason."""

    run: Run
    workflow: Workflow | None
    interrupted: Round | None
    start: RoundStart
    """The start without a plan, with the reasons against those that exist."""
    routing: RoutingDecision | None = None
    """The router's decision, if it was asked."""
    not_learned: str = ""
    """Why no learned workflow runs, if there are any."""

    # ------------------------------------------------------------------------------- plans that exist

    def continuation(self) -> RoundStart | None:
        """Lets the worker that made tool calls go on, if it still may."""
        continuation = self.run.request.continuation
        if continuation is None:
            return None
        if reason := _continuation_error(self.run, self.start, continuation):
            self.start = _with_dropped(self.start, _not_continued(continuation, reason))
            return None
        plan = PlanRecord(source="continuation")
        if self.interrupted is not None and self.interrupted.plan.source == "continuation":
            plan = self.interrupted.plan
        return _with_continuation(self.start, continuation, plan)

    def interrupted_plan(self) -> RoundStart | None:
        """Keeps the plan of the interrupted round, if it is still allowed.

        Raises:
            WorkflowValidationError: it is the caller's own plan, which is never replaced, and no longer allowed.
        """
        plan = None if self.interrupted is None else self.interrupted.plan
        if plan is None or not plan.is_complete or plan.source == "continuation":
            return None
        try:
            return _with_restored_plan(self.run, self.start, plan)
        except WorkflowValidationError as error:
            if plan.source == "given":
                raise
            reason = f"the plan of the interrupted run is dropped: {'; '.join(error.violations)}"
            self.start = _with_dropped(self.start, reason)
            return None

    def callers_workflow(self) -> RoundStart | None:
        """Runs the caller's workflow.

        Raises:
            WorkflowValidationError: it is not allowed.
        """
        if self.workflow is None or self.run.rounds:
            return None
        space, plan = _given_plan(ByIdentity(self.start.space), ByIdentity(self.workflow))
        return self.start._replace(plan=plan, space=space)

    # -------------------------------------------------------------------------------------- new plans

    def only_workflow(self) -> RoundStart | None:
        """Lets one worker answer alone, if no other plan is allowed."""
        space = self.start.space
        if not space.leaves_no_choice:
            return None
        return self._with_plan(PlanRecord(source="single", workflow=fallback_workflow(space, self.run.pool)))

    def routed_call(self) -> RoundStart | None:
        """Lets the router's worker answer a simple request alone, if it may."""
        if self.run.router is None or self.run.rounds:
            return None
        routing = self.run.router.decide(self.run.request)
        workflow = single_step(routing.worker)
        if routing.route == "single" and (violations := self.start.space.violations(workflow)):
            routing = routing.model_copy(update={"route": "conductor", "reason": "; ".join(violations)})
        self.routing = routing
        if routing.route == "conductor":
            return None
        return self._with_plan(PlanRecord(source="router", workflow=workflow, routing=routing))

    def learned_workflow(self) -> RoundStart | None:
        """Runs the learned workflow for the request, if the policy and the limits allow it.

        A request of another kind is left to the planner, unless that may not see it.
        """
        selector = self.run.selector
        if selector is None or self.run.rounds:
            return None
        if not selector.includes(self.run.request) and self.run.allowed.may_plan:
            self.not_learned = "the request is unlike the questions of the learned workflows"
            return None
        workflow = selector.select(self.run.request)
        if violations := self.start.space.violations(workflow):
            self.not_learned = f"the learned workflow is not allowed: {'; '.join(violations)}"
            return None
        return self._with_plan(PlanRecord(source="learned", workflow=workflow, routing=self.routing))

    def planner(self) -> RoundStart:
        """Leaves the plan to the planner, and records why no other source has one."""
        reason = self.not_learned or self.run.planner_reason
        return self._with_plan(PlanRecord(source="planner", planning_reason=reason, routing=self.routing))

    def _with_plan(self, plan: PlanRecord) -> RoundStart:
        return self.start._replace(plan=plan)


def _with_dropped(start: RoundStart, *reasons: str) -> RoundStart:
    return start._replace(dropped=(*start.dropped, *reasons))


# ------------------------------------------------------------------------------------ plans that exist


def _continuation_error(run: Run, start: RoundStart, continuation: Continuation) -> str | None:
    denied = run.allowed.continuation_error(continuation, start.space)
    return denied or subject_error(run.request, continuation)


def _not_continued(continuation: Continuation, reason: str) -> str:
    return f"tool calls of {continuation.worker!r} are not continued: {reason}"


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
            raise WorkflowValidationError(_not_continued(continuation, reason))
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
    restored = restorable_results(run, start, interrupted.results)
    planning = () if start.plan.source == interrupted.plan.source else interrupted.plan.calls
    start = _with_dropped(start, *restored.errors)
    return start._replace(results=restored.results, abandoned_calls=(*planning, *restored.abandoned_calls))
