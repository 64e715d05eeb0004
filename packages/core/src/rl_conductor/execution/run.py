"""Runs one request: rounds of planning and executing, until a round's answer stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rl_conductor.calls.budget import usage_sink
from rl_conductor.calls.record import format_for_log, log
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.execution.answer import raise_if_unanswered
from rl_conductor.execution.executor import Execution
from rl_conductor.execution.restore import RestoredRound, restore_results, resumable_rounds
from rl_conductor.execution.state import RunState
from rl_conductor.planning.fallback import fallback_workflow, single_step
from rl_conductor.planning.planner import PlanRequest
from rl_conductor.planning.prompts import with_prompt
from rl_conductor.planning.recursion import can_read, collect_previous_rounds
from rl_conductor.trace.events import AnswerDelta, Finished, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Answer, PlanRecord, Round, RoutingDecision, StepResult, Trace
from rl_conductor.types import Continuation
from rl_conductor.workflow.workflow import PlanSpace, Workflow

UNPLANNED = ("single", "tier", "fallback", "continuation")
"""Sources of plans that neither the planner nor the caller wrote."""


@dataclass
class Run(RunState):
    """Plans and executes rounds until there is an answer."""

    async def run(self, workflow: Workflow | None = None) -> Trace:
        """Returns the finished trace; with a `workflow`, the first round runs that instead of planning.

        The last of the `previous_rounds` is resumed: its plan stays, and its finished steps are not run again.

        Raises:
            PolicyError: no workflow is allowed.
            WorkflowValidationError: the given workflow is not allowed.
            LimitError: conductors are nested too deep.
            RunError: there is no answer; it carries the trace.
        """
        interruption: str | None = "cancelled"
        try:
            self.caller.budget.check_depth()
            await self._run_rounds(workflow)
            interruption = None
        except Exception as error:
            interruption = str(error)
            raise
        finally:
            trace = self.finish(interruption)
        return raise_if_unanswered(trace)

    def finish(self, interruption: str | None = None) -> Trace:
        """Ends the run: reports its usage, emits `Finished`, and returns the trace."""
        trace = self.trace(interruption)
        if (usages := usage_sink.get()) is not None:
            usages.append(trace.usage)
        if trace.answer is not None and trace.answer.source == "evidence":
            self._log_evidence(trace.answer)
        if trace.completion is not None and trace.completion.text and not self.streamed_text:
            self.emit(AnswerDelta(text=trace.completion.text))
        self.emit(Finished(trace=trace))
        return trace

    def _log_evidence(self, answer: Answer) -> None:
        last = self.rounds[answer.round].results[-1]
        reason = format_for_log(last.error or last.status, self.pool[last.step.worker].model)
        log.warning("%s: the last step failed, so the reply of step %d answers: %s", self.id, answer.step + 1, reason)

    async def plan(self) -> PlanRecord:
        """Returns a plan without running it: the fallback's workflow when the planner wrote none."""
        self.caller.budget.check_depth()
        try:
            return await self.plan_round(self.execution(), start_early=False)
        except asyncio.CancelledError:
            self.finish("cancelled")
            raise

    # -------------------------------------------------------------------------------------- rounds

    async def _run_rounds(self, workflow: Workflow | None) -> None:
        self.rounds, self.dropped = resumable_rounds(self.rounds, self.first_space, self.rules, self.planner.card)
        interrupted = self.rounds.pop() if self.rounds else None
        while self.number < self.limits.rounds:
            execution = self.execution()
            record = await self.plan_round(execution, workflow=workflow, interrupted=interrupted)
            workflow = interrupted = None
            await self._execute(execution, record)
            if not self.may_continue(record):
                break

    async def plan_round(
        self,
        execution: Execution,
        *,
        workflow: Workflow | None = None,
        interrupted: Round | None = None,
        start_early: bool = True,
    ) -> PlanRecord:
        """Returns the current round's plan, and restores the finished steps of an interrupted round.

        The plan continues tool calls, resumes the interrupted round, runs the caller's workflow, or is newly planned.
        """
        continuation = self.request.continuation
        if continuation is not None and (reason := self.rules.continuation_error(continuation, self.space())):
            self.dropped.append(f"tool calls of {continuation.worker!r} are not continued: {reason}")
            continuation = None
        if continuation is not None:
            record = self._continuation(continuation, execution)
        elif interrupted is not None and self._may_resume(interrupted.plan, execution):
            record = self.restore_plan(interrupted.plan, execution)
        elif workflow is not None:
            record = self._check_workflow(workflow, execution)
        else:
            execution.abandoned_calls = interrupted.calls if interrupted else ()
            return await self._plan(execution, start_early=start_early)
        restored = self.restore_results(record.workflow, interrupted.results if interrupted else (), execution)
        self.dropped += restored.errors
        record = self._announce(record)
        execution.restore(restored.results)
        execution.abandoned_calls = restored.abandoned_calls
        for result in restored.results:
            self.emit(StepFinished(round=self.number, result=result))
        return record

    def restore_results(
        self, workflow: Workflow | None, results: Sequence[StepResult], execution: Execution
    ) -> RestoredRound:
        """Selects the results of an earlier attempt at this round that are reused; the other steps run again."""
        if workflow is None:
            return RestoredRound((), (), ())
        return restore_results(workflow, results, execution.space, self.rules)

    def _may_resume(self, record: PlanRecord, execution: Execution) -> bool:
        """Whether an interrupted run's plan is complete and still allowed; the caller's own is never replaced."""
        if not record.is_complete or record.source == "continuation":
            return False
        if record.workflow is None or record.source == "given":
            return True
        violations = self.rules.violations(record.workflow, execution.space)
        if violations:
            self.dropped.append(f"the plan of the interrupted run is dropped: {'; '.join(violations)}")
        return not violations

    def restore_plan(self, record: PlanRecord, execution: Execution) -> PlanRecord:
        """Returns a plan that was made before, if it is still allowed.

        Raises:
            WorkflowValidationError: it is not.
        """
        continuation = self.request.continuation
        if record.source == "continuation" and continuation is not None:
            if reason := self.rules.continuation_error(continuation, self.space()):
                raise WorkflowValidationError(f"tool calls of {continuation.worker!r} are not continued: {reason}")
            return self._continuation(continuation, execution)
        if record.workflow is None:
            return record
        if record.source == "given":  # may replace a plan that the planner wrote, whose calls it then carries
            self._relax(execution, record.workflow)
        violations = self.rules.violations(record.workflow, execution.space)
        if violations:
            raise WorkflowValidationError(*violations)
        return record

    def _check_workflow(self, workflow: Workflow, execution: Execution) -> PlanRecord:
        self._relax(execution, workflow)
        return PlanRecord(source="given", workflow=execution.space.check(workflow))

    def _relax(self, execution: Execution, workflow: Workflow) -> None:
        """Lifts the rules that only keep the planner's plans easy to write, for the caller's own `workflow`."""
        max_chars = max(len(step.subtask) for step in workflow.steps)
        execution.space = execution.space.model_copy(update={"access": "positional", "subtask_chars": max_chars})

    def _continuation(self, continuation: Continuation, execution: Execution) -> PlanRecord:
        """Returns a plan of one step: the worker that made the tool calls gets their results."""
        if execution.space.forbidden_flows:  # the prompt holds replies that another worker might not be allowed to read
            execution.space = execution.space.model_copy(update={"allowed": frozenset({continuation.worker})})
        request = execution.request
        execution.request = request.model_copy(update={"messages": with_prompt(request.messages, continuation.prompt)})
        return PlanRecord(source="continuation", workflow=single_step(continuation.worker))

    async def _execute(self, execution: Execution, record: PlanRecord) -> None:
        if record.workflow is None:  # the previous round's answer is accepted
            self.rounds.append(Round(plan=record))
            return
        self.prepare(execution, record)
        try:
            await execution.run(record.workflow)
        finally:
            self.streamed_text = execution.streamed_text
            if execution.abandoned_calls:
                record = record.model_copy(update={"calls": (*record.calls, *execution.abandoned_calls)})
            self.rounds.append(Round(plan=record, results=execution.results()))

    def prepare(self, execution: Execution, record: PlanRecord) -> None:
        """Decides whether the worker gets the bare conversation, and whether the answer is streamed."""
        is_unplanned = record.source in UNPLANNED
        execution.passthrough = is_unplanned and record.workflow is not None and len(record.workflow.steps) == 1
        execution.stream = self.stream and (is_unplanned or self.number + 1 >= self.limits.rounds)

    def may_continue(self, record: PlanRecord) -> bool:
        """Whether another round is allowed and useful: there is an answer, and the planner may read it."""
        if self.number >= self.limits.rounds or record.workflow is None or record.source in UNPLANNED:
            return False
        reply = self.rounds[-1].results[-1].reply
        if reply is None or reply.tool_calls:
            return False
        is_readable = can_read(self.planner.card, self.rounds, self.pool, self.policy)
        return is_readable and bool(self.space().final_workers)

    # ------------------------------------------------------------------------------------ planning

    async def _plan(self, execution: Execution, *, start_early: bool = True) -> PlanRecord:
        """Returns a new plan: the only one allowed, one call by the tier's decision, or the planner's.

        With `start_early`, the planner's first step starts before the rest of its plan is written.
        """
        space = execution.space
        if space.leaves_no_choice:
            return self._announce(PlanRecord(source="single", workflow=fallback_workflow(space, self.pool)))
        tier = self._tier(space)
        if tier is not None and tier.tier == "single":
            return self._announce(PlanRecord(source="tier", workflow=single_step(tier.worker), tier=tier))
        self.check_planner_access()
        draft = self._plan_request(execution, start_early=start_early)
        record = PlanRecord(source="planner", errors=("cancelled",), tier=tier)
        try:
            record = (await self.planner.plan(draft)).model_copy(update={"tier": tier})
        except BaseException:
            calls = (*draft.calls, *await execution.abandon())
            self.rounds.append(Round(plan=record.model_copy(update={"calls": calls})))
            raise
        if record.source == "fallback":
            if not self.rounds:
                record = record.model_copy(update={"workflow": fallback_workflow(space, self.pool)})
            self._log_fallback(record)
        return self._announce(record)

    def _log_fallback(self, record: PlanRecord) -> None:
        instead = "the answer before stands"
        if record.workflow is not None:
            instead = f"{record.workflow.steps[-1].worker} answers alone"
        reason = format_for_log(record.errors[-1], self.planner.model) if record.errors else "no reason is known"
        log.warning("%s has no plan for round %d, so %s: %s", self.id, self.number + 1, instead, reason)

    def _tier(self, space: PlanSpace) -> RoutingDecision | None:
        """Classifies the request, if there is a classifier; overruled where its worker may not answer alone."""
        if self.tiers is None or self.rounds:
            return None
        decision = self.tiers.decide(self.request)
        if decision.tier == "single" and (violations := space.violations(single_step(decision.worker))):
            return decision.model_copy(update={"tier": "conductor", "because": "; ".join(violations)})
        return decision

    def _plan_request(self, execution: Execution, *, start_early: bool) -> PlanRequest:
        return PlanRequest(
            conversation=self.request.messages,
            space=execution.space,
            cards=self.pool.cards,
            caller=self.caller,
            fence_key=self.fence_key,
            emit=self.emit,
            round_index=self.number,
            previous_rounds=collect_previous_rounds(self.rounds, self.first_space, self.planner.plan_form),
            on_first_step=lambda step: execution.start(0, step) if start_early else None,
            on_rejected=execution.abandon,
        )

    def _announce(self, record: PlanRecord) -> PlanRecord:
        """Emits the plan, with the reasons why parts of an interrupted run were dropped."""
        if self.dropped:
            record = record.model_copy(update={"errors": (*self.dropped, *record.errors)})
            self.dropped = []
        self.emit(WorkflowPlanned(round=self.number, plan=record))
        return record
