"""Runs one request: rounds of planning and executing, until a round's answer stands."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from rl_conductor.calls.failures import format_for_log, log
from rl_conductor.calls.scope import report_run
from rl_conductor.errors import ConductorError, GuardrailError
from rl_conductor.execution.answer import list_failures, raise_if_unanswered, run_error
from rl_conductor.execution.executor import Execution
from rl_conductor.execution.plan_source import UNPLANNED, PlanSource
from rl_conductor.execution.restore import resumable_rounds
from rl_conductor.execution.state import RunState
from rl_conductor.planning.plan_stream import read_plan
from rl_conductor.trace.events import AnswerDelta, Finished
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.trace import Answer, PlanRecord, Round, Trace
from rl_conductor.workflow.workflow import Workflow


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
        interruption: str | None = CANCELLED
        ends_run = False
        try:
            self.context.budget.check_depth()
            if self.context.guardrails:
                await self.check_input()
            interrupted = self._interrupted_round() if self.rounds else None
            while self.number < self.limits.rounds:
                record = await self._run_round(workflow, interrupted)
                workflow = interrupted = None
                if not self.may_continue(record):
                    break
            interruption = None
        except GuardrailError as error:
            interruption = str(error)
        except Exception as error:
            ends_run = isinstance(error, ConductorError) and error.ends_run
            interruption = self.locate(error) if ends_run else str(error)
            if not ends_run:
                raise
        finally:
            trace = self.finish(interruption)
            self.context.budget.close()
        return raise_if_unanswered(trace, ends_run=ends_run)

    def _interrupted_round(self) -> Round | None:
        """Drops previous rounds that the policy does not allow, and returns the last of the others to resume."""
        self.rounds, self.dropped = resumable_rounds(self.rounds, self.allowed)
        return self.rounds.pop() if self.rounds else None

    def locate(self, error: Exception) -> str:
        """Returns the text of `error`, with its step and worker if it comes from one."""
        text = str(error)
        return next((failure for failure in list_failures(self.rounds) if text in failure), text)

    async def _run_round(self, workflow: Workflow | None, interrupted: Round | None) -> PlanRecord:
        """Runs one round and adds it to the trace, however it ends."""
        execution = self.execution()
        try:
            source = PlanSource(self, execution)
            async with aclosing(source.stream(workflow=workflow, interrupted=interrupted)) as plan:
                await execution.run(plan)
        finally:
            self.streamed_text = execution.round.streamed_text
            if execution.plan is not None:
                self.rounds.append(execution.to_round(execution.plan))
        assert execution.plan is not None
        return execution.plan

    async def plan(self) -> PlanRecord:
        """Returns a plan without running it: the fallback's workflow when the planner wrote none.

        Raises:
            RunError: a guardrail refused the request, or failed.
        """
        self.context.budget.check_depth()
        execution: Execution | None = None
        try:
            if self.context.guardrails:
                await self.check_input()
            execution = self.execution()
            return await read_plan(PlanSource(self, execution).stream())
        except GuardrailError as error:
            raise run_error(self.finish(str(error))) from None
        except asyncio.CancelledError:
            if execution is not None and execution.plan is not None:
                self.rounds.append(execution.to_round(execution.plan))
            self.finish(CANCELLED)
            raise

    def finish(self, interruption: str | None = None) -> Trace:
        """Ends the run: reports its usage, emits `Finished`, and returns the trace."""
        if self.guard.has_record:
            plan = PlanRecord(source="planner", errors=(interruption,) if interruption else ())
            self.rounds.append(Round(plan=self.guard.move_record(plan)))
        trace = self.trace(interruption)
        report_run(trace, self.context.began)
        if trace.answer is not None and trace.answer.source == "evidence":
            self._log_evidence(trace.answer)
        if self.context.has_listener:
            if trace.completion is not None and trace.completion.text and not self.streamed_text:
                self.context.emit(AnswerDelta(text=trace.completion.text, is_refusal=trace.completion.is_refusal))
            self.context.emit(Finished(trace=trace))
        return trace

    def _log_evidence(self, answer: Answer) -> None:
        last = self.rounds[answer.round].results[-1]
        reason = format_for_log(last.error or last.status, self.pool[last.step.worker].model)
        log.warning("%s: the last step failed, so the reply of step %d answers: %s", self.id, answer.step + 1, reason)

    def may_continue(self, record: PlanRecord) -> bool:
        """Whether another round is allowed and useful: there is an answer, and the planner may read it."""
        if self.number >= self.limits.rounds or record.workflow is None or record.source in UNPLANNED:
            return False
        reply = self.rounds[-1].results[-1].reply
        if reply is None or reply.tool_calls:
            return False
        return self.allowed.may_plan_after(self.rounds) and bool(self.space().final_workers)
