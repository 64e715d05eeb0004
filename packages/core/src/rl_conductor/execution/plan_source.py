"""Decides where the plan of a round comes from, and delivers it as a stream of steps.

In this order: the continuation of a worker's tool calls, the plan of an interrupted round, the caller's workflow, the
only workflow that the policy allows, the router's single call, the learned workflow, the planner, and the fallback
where the planner failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING

from rl_conductor._internal.identity import ByIdentity
from rl_conductor.calls.failures import format_for_log, log
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.execution.continuation import digest_subject, subject_error
from rl_conductor.execution.executor import Execution
from rl_conductor.execution.guarding import checks_replies, missing_checks
from rl_conductor.execution.restore import RestoredRound, restore_results
from rl_conductor.planning.fallback import fallback_workflow, single_step
from rl_conductor.planning.later_rounds import collect_previous_rounds
from rl_conductor.planning.plan_stream import PlanRequest, PlanStream
from rl_conductor.pool.worker_prompt import with_prompt
from rl_conductor.trace.events import StepFinished, WorkflowPlanned
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.trace import PlanRecord, Round, RoutingDecision, StepResult
from rl_conductor.types import Continuation
from rl_conductor.workflow.workflow import PlanSpace, Workflow

if TYPE_CHECKING:
    from rl_conductor.execution.run import Run

UNPLANNED = ("single", "router", "learned", "fallback", "continuation")
"""Sources of plans that neither the planner nor the caller wrote."""


class PlanSource:
    """Provides the plan of one round."""

    def __init__(self, run: Run, execution: Execution) -> None:
        """Creates the source of a round's plan.

        Args:
            run: the run.
            execution: the execution of the round, which gets its settings from the plan.
        """
        self._run = run
        self._execution = execution
        self._round = execution.round
        self._planning_reason = run.planner_reason

    async def stream(self, *, workflow: Workflow | None = None, interrupted: Round | None = None) -> PlanStream:
        """Yields the plan, after restoring the finished steps of an interrupted round.

        Args:
            workflow: the caller's own workflow.
            interrupted: the same round of an interrupted run.

        Raises:
            PolicyError: the policy allows no workflow, or the planner may not read the request.
            WorkflowValidationError: `workflow` is not allowed.
        """
        run = self._run
        record = self._known_plan(workflow, interrupted)
        if record is not None:
            yield self._restore(record, interrupted)
            return
        if interrupted is not None:
            self._execution.abandoned_calls = interrupted.calls
        decision = self._route()
        record = self._unplanned(decision)
        if record is not None:
            yield self._announce(record)
            return
        run.allowed.check_planner_access()
        request = self._plan_request()
        try:
            async with aclosing(run.planner.stream(request)) as items:
                async for item in items:
                    if isinstance(item, PlanRecord):
                        yield self._announce(self._with_fallback(item, decision))
                    else:
                        yield item
        except BaseException:
            record = PlanRecord(source="planner", errors=(CANCELLED,), routing=decision, calls=tuple(request.calls))
            self._execution.plan = self._execution.plan or run.guard.move_record(record)
            raise

    def _known_plan(self, workflow: Workflow | None, interrupted: Round | None) -> PlanRecord | None:
        """Returns a plan that exists before any planning: a continuation, an interrupted round's, or the caller's."""
        continuation = self._run.request.continuation
        if continuation is not None:
            reason = self._continuation_error(continuation)
            if reason is None:
                return self._continuation(continuation)
            self._run.dropped.append(f"tool calls of {continuation.worker!r} are not continued: {reason}")
        if interrupted is not None and self._may_resume(interrupted.plan):
            return self.restore_plan(interrupted.plan)
        if workflow is not None:
            self._round.space, record = _given_plan(ByIdentity(self._round.space), ByIdentity(workflow))
            return record
        return None

    def _unplanned(self, decision: RoutingDecision | None) -> PlanRecord | None:
        """Returns the only allowed plan, the router's single call, or the learned workflow."""
        if self._round.space.leaves_no_choice:
            return PlanRecord(source="single", workflow=fallback_workflow(self._round.space, self._round.pool))
        if decision is not None and decision.route == "single":
            return PlanRecord(source="router", workflow=single_step(decision.worker), routing=decision)
        workflow = self._learned_workflow()
        return None if workflow is None else PlanRecord(source="learned", workflow=workflow, routing=decision)

    def _learned_workflow(self) -> Workflow | None:
        """Returns the learned workflow for the request.

        `None` where the policy or the limits don't allow it, and for requests of other kinds that the planner may see.
        """
        run = self._run
        if run.selector is None or run.rounds:
            return None
        if not run.selector.includes(run.request) and run.allowed.may_plan:
            self._planning_reason = "the request is unlike the questions of the learned workflows"
            return None
        workflow = run.selector.select(run.request)
        violations = self._round.space.violations(workflow)
        if violations:
            self._planning_reason = f"the learned workflow is not allowed: {'; '.join(violations)}"
        return None if violations else workflow

    def _with_fallback(self, record: PlanRecord, decision: RoutingDecision | None) -> PlanRecord:
        """Adds the router's decision, and the fallback workflow if the planner wrote no plan for the first round."""
        run = self._run
        record = record.model_copy(update={"routing": decision, "planning_reason": self._planning_reason})
        if record.source != "fallback":
            return record
        instead = "the answer before stands"
        if not run.rounds:
            workflow = fallback_workflow(run.space(), run.pool)
            record = record.model_copy(update={"workflow": workflow})
            instead = f"{workflow.steps[-1].worker} answers alone"
        reason = format_for_log(record.errors[-1], run.planner.model) if record.errors else "no reason is known"
        log.warning("%s has no plan for round %d, so %s: %s", run.id, run.number + 1, instead, reason)
        return record

    def _route(self) -> RoutingDecision | None:
        """Classifies the request, if there is a router; overruled where its worker may not answer alone."""
        run, space = self._run, self._round.space
        if run.router is None or run.rounds or space.leaves_no_choice:
            return None
        decision = run.router.decide(run.request)
        if decision.route == "single" and (violations := space.violations(single_step(decision.worker))):
            return decision.model_copy(update={"route": "conductor", "reason": "; ".join(violations)})
        return decision

    def _plan_request(self) -> PlanRequest:
        run = self._run
        return PlanRequest(
            run=run.context,
            conversation=run.request.messages,
            space=run.planner.plannable(self._round.space),
            cards=run.pool.cards,
            round_index=run.number,
            previous_rounds=collect_previous_rounds(run.rounds, run.allowed.first_space, run.planner.plan_form),
        )

    def _announce(self, record: PlanRecord) -> PlanRecord:
        """Applies the plan to the execution and emits it, with the reasons why parts of an old run were dropped."""
        run = self._run
        if run.dropped:
            record = record.model_copy(update={"errors": (*run.dropped, *record.errors)})
            run.dropped = []
        record = run.guard.move_record(record)
        self.prepare(record)
        if run.context.has_listener:
            run.context.emit(WorkflowPlanned(round=run.number, plan=record))
        return record

    def prepare(self, record: PlanRecord) -> None:
        """Decides whether the worker gets the bare conversation, and whether the answer is streamed."""
        is_unplanned = record.source in UNPLANNED
        is_last_round = self._run.number + 1 >= self._run.limits.rounds
        self._round.passthrough = is_unplanned and record.workflow is not None and len(record.workflow.steps) == 1
        self._round.stream = self._run.stream and (is_unplanned or is_last_round)
        if self._round.stream and self._run.context.all_guardrails:  # text that was sent can't be taken back
            self._round.stream = not checks_replies(self._run.context)

    # -------------------------------------------------------------------------------- interrupted runs

    def _restore(self, record: PlanRecord, interrupted: Round | None) -> PlanRecord:
        """Emits a plan that was not planned now, with the finished steps of the interrupted round."""
        if interrupted is None:
            return self._announce(record)
        run = self._run
        restored = self.restore_results(record.workflow, interrupted.results)
        run.dropped += restored.errors
        record = self._announce(record)
        self._execution.restore(restored.results)
        self._execution.abandoned_calls = restored.abandoned_calls
        for result in restored.results:
            run.context.emit(StepFinished(round=run.number, result=result))
        return record

    def restore_results(self, workflow: Workflow | None, results: Sequence[StepResult]) -> RestoredRound:
        """Selects the results of an earlier attempt at this round that are reused; the other steps run again."""
        if workflow is None:
            return RestoredRound((), (), ())
        last, context = len(workflow.steps) - 1, self._run.context
        missing = {result.index: missing_checks(context, result, is_last=result.index == last) for result in results}
        unchecked = {index: ", ".join(map(repr, names)) for index, names in missing.items() if names}
        return restore_results(workflow, results, self._round.space, self._run.allowed, unchecked)

    def _may_resume(self, record: PlanRecord) -> bool:
        """Whether an interrupted run's plan is complete and still allowed; the caller's own is never replaced."""
        if not record.is_complete or record.source == "continuation":
            return False
        if record.workflow is None or record.source == "given":
            return True
        violations = self._run.allowed.violations(record.workflow, self._round.space)
        if violations:
            self._run.dropped.append(f"the plan of the interrupted run is dropped: {'; '.join(violations)}")
        return not violations

    def restore_plan(self, record: PlanRecord) -> PlanRecord:
        """Returns a plan that was made before, if it is still allowed.

        Raises:
            WorkflowValidationError: it is not.
        """
        continuation = self._run.request.continuation
        if record.source == "continuation" and continuation is not None:
            if reason := self._continuation_error(continuation):
                raise WorkflowValidationError(f"tool calls of {continuation.worker!r} are not continued: {reason}")
            return self._continuation(continuation)
        if record.workflow is None:
            return record
        if record.source == "given":  # may replace a plan that the planner wrote, whose calls it then carries
            self._round.space = self._round.space.relaxed_for(record.workflow)
        violations = self._run.allowed.violations(record.workflow, self._round.space)
        if violations:
            raise WorkflowValidationError(*violations)
        return record

    def _continuation_error(self, continuation: Continuation) -> str | None:
        run = self._run
        denied = run.allowed.continuation_error(continuation, run.space())
        return denied or subject_error(run.request, continuation)

    def _continuation(self, continuation: Continuation) -> PlanRecord:
        """Returns a plan of one step: the worker that made the tool calls gets their results."""
        context = self._round
        if context.space.forbidden_flows:  # the prompt holds replies that another worker might not be allowed to read
            context.space = context.space.model_copy(update={"allowed": frozenset({continuation.worker})})
        context.continued = continuation.model_copy(update={"subject": digest_subject(context.request)})
        if continuation.prompt is not None:
            messages = with_prompt(context.request.messages, continuation.prompt)
            context.request = context.request.model_copy(update={"messages": messages})
        return PlanRecord(source="continuation", workflow=single_step(continuation.worker, continuation.inputs))


@lru_cache(maxsize=256)
def _given_plan(space: ByIdentity[PlanSpace], workflow: ByIdentity[Workflow]) -> tuple[PlanSpace, PlanRecord]:
    """Checks a caller's workflow; cached, because callers run the same one again and again.

    Raises:
        WorkflowValidationError: it is not allowed.
    """
    relaxed = space.value.relaxed_for(workflow.value)
    return relaxed, PlanRecord(source="given", workflow=relaxed.check(workflow.value))
