"""Runs one request: rounds of planning and executing, until a round's answer stands."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache

from rl_conductor._internal.formatting import join_reasons
from rl_conductor._internal.identity import ByIdentity
from rl_conductor._internal.version import package_version
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.failures import format_for_log, log
from rl_conductor.calls.scope import report_run
from rl_conductor.errors import ConductorError, GuardrailError
from rl_conductor.execution.allowed_plans import AllowedPlans
from rl_conductor.execution.answer import list_failures, raise_if_unanswered, run_error, select_answer, to_completion
from rl_conductor.execution.executor import RoundExecutor
from rl_conductor.execution.guarding import RequestGuard, answer_block, check_guardrail_access, checks_answer
from rl_conductor.execution.plan_delivery import deliver_plan
from rl_conductor.execution.plan_source import RoundStart, decide_start
from rl_conductor.execution.restore import resumable_rounds
from rl_conductor.execution.round_context import Hedges, RoundContext
from rl_conductor.planning.plan_stream import read_plan
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.router import Router
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor.trace.events import AnswerDelta, Finished, ReasoningDelta
from rl_conductor.trace.observers import RunInfo
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.setup import PlannerSetup, Setup, Versions, WorkerSetup
from rl_conductor.trace.trace import Answer, PlanRecord, Round, Trace
from rl_conductor.types import Completion, Request, total
from rl_conductor.workflow.plan_space import AccessMode, PlanSpace
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow


@dataclass
class Run:
    """One request with the conductor's configuration for it: plans and executes rounds until there is an answer."""

    context: RunContext
    planner: Planner
    pool: WorkerPool
    request: Request
    policy: Policy
    access: AccessMode = "binary"
    conductor: str = "conductor"
    """The conductor's name."""
    stream: bool = False
    """Pass the answer on while it is generated, if it is certain to be the answer."""
    router: Router | None = None
    selector: WorkflowSelector | None = None
    previous_rounds: Sequence[Round] = ()
    """Finished rounds, which this run made before it was interrupted, or under another host."""
    interrupted: Round | None = None
    """The round that is resumed, until it has a plan again: its plan stays, and its finished steps don't run again."""
    rounds: list[Round] = field(init=False)
    streamed_text: str = field(default="", init=False)
    """The part of the answer that was passed on while it was generated."""
    has_streamed_reasoning: bool = field(default=False, init=False)
    """Whether reasoning of the final worker was passed on."""
    planner_reason: str = field(default="", init=False)
    """Why the conductor's trained planner leaves the request to its general one; empty if it doesn't."""

    def __post_init__(self) -> None:
        self.limits = self.context.limits
        self.hedges = Hedges(self.limits.hedges)
        self.id = f"run-{secrets.token_hex(8)}"
        self.created = datetime.now(UTC)
        self.guard = RequestGuard(self.request)
        self.rounds = list(self.previous_rounds)
        interrupted = () if self.interrupted is None else (self.interrupted,)
        self.context.charge_previous(call for round_ in (*self.rounds, *interrupted) for call in round_.calls)
        if self.planner.domain is not None:
            self._choose_planner()

    def _choose_planner(self) -> None:
        planner = self.planner.for_request(self.request)
        if planner is not self.planner:
            self.planner_reason = f"the request is unlike the questions that {self.planner.model.name} was trained on"
            self.planner = planner

    def info(self) -> RunInfo:
        """Describes the run to observers."""
        return RunInfo(
            id=self.id,
            conductor=self.conductor,
            planner=self.planner.model.name,
            workers={worker.name: worker.model.name for worker in self.pool.values()},
            elapsed=self.context.elapsed(),
        )

    @cached_property
    def allowed(self) -> AllowedPlans:
        """The plans that the rounds may have; later redactions in the request do not change them."""
        return AllowedPlans(self.policy, self.pool, self.planner, self.request, self.limits.steps, self.access)

    @property
    def number(self) -> int:
        """The number of the current round, from 0."""
        return len(self.rounds)

    def space(self) -> PlanSpace:
        """Returns the plans that the current round may have.

        Raises:
            PolicyError: no workflow is allowed.
        """
        return self.allowed.space(self.rounds)

    def executor(self, start: RoundStart) -> RoundExecutor:
        """Creates the executor of a round with this start; the results that are reused are in it."""
        context = RoundContext(
            run=self.context,
            pool=self.pool,
            space=start.space,
            request=start.request,
            continued=start.continued,
            number=self.number,
            previous_rounds=tuple(self.rounds),
            hedges=self.hedges,
            stream=self.stream,
        )
        executor = RoundExecutor(context, abandoned_calls=start.abandoned_calls)
        executor.restore(start.results)
        return executor

    async def check_input(self) -> None:
        """Lets the guardrails check the request; redacted text is replaced, and a request that fails is withheld.

        Raises:
            GuardrailError: a guardrail refused the request, or failed.
            PolicyError: a guardrail's model may not read the request.
        """
        if self.guard.is_done:
            return
        check_guardrail_access(self.context.guardrails, self.policy)
        self.request = self.guard.withheld
        self.request = await self.guard.check(self.context)

    # -------------------------------------------------------------------------------- rounds

    async def run(self, workflow: Workflow | None = None) -> Trace:
        """Returns the finished trace; with a `workflow`, the first round runs that instead of planning.

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
            dropped = self._drop_denied_rounds()
            while self.number < self.limits.rounds or self._has_resumed_plan:
                record = await self._run_round(decide_start(self, workflow, self.interrupted, dropped))
                dropped = ()
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

    @property
    def _has_resumed_plan(self) -> bool:
        """Whether a planned round is resumed, which limits on new plans don't drop, because it has been paid for."""
        return self.interrupted is not None and self.interrupted.plan.is_complete

    def _drop_denied_rounds(self) -> Sequence[str]:
        """Drops previous rounds that the policy does not allow, and returns why; the last of the others is resumed."""
        if self.interrupted is None:
            return ()
        (*self.rounds, self.interrupted), dropped = resumable_rounds([*self.rounds, self.interrupted], self.allowed)
        return dropped

    def locate(self, error: Exception) -> str:
        """Returns the text of `error`, with its step and worker if it comes from one."""
        text = str(error)
        return next((failure for failure in list_failures(self.rounds) if text in failure), text)

    async def _run_round(self, start: RoundStart) -> PlanRecord:
        """Runs one round and adds it to the trace, however it ends."""
        executor = self.executor(start)
        try:
            async with aclosing(deliver_plan(self, start, executor)) as plan:
                await executor.run(plan)
        finally:
            self.streamed_text = executor.round.streamed_text
            self.has_streamed_reasoning = executor.round.has_streamed_reasoning
            if executor.plan is not None:
                self.rounds.append(executor.to_round(executor.plan))
                self.interrupted = None
        assert executor.plan is not None
        return executor.plan

    def may_continue(self, record: PlanRecord) -> bool:
        """Whether another round is allowed and useful: there is an answer, and the planner may read it."""
        if self.number >= self.limits.rounds or record.workflow is None or record.is_unplanned:
            return False
        reply = self.rounds[-1].results[-1].reply
        if reply is None or reply.tool_calls:
            return False
        return self.allowed.may_plan_after(self.rounds) and bool(self.space().final_workers)

    async def plan(self) -> PlanRecord:
        """Returns a plan without running it: the fallback's workflow when the planner wrote none.

        Raises:
            RunError: a guardrail refused the request, or failed.
        """
        self.context.budget.check_depth()
        executor: RoundExecutor | None = None
        try:
            if self.context.guardrails:
                await self.check_input()
            start = decide_start(self)
            executor = self.executor(start)
            return await read_plan(deliver_plan(self, start, executor))
        except GuardrailError as error:
            raise run_error(self.finish(str(error))) from None
        except asyncio.CancelledError:
            if executor is not None and executor.plan is not None:
                self.rounds.append(executor.to_round(executor.plan))
            self.finish(CANCELLED)
            raise

    # -------------------------------------------------------------------------------- answer and trace

    def answer(self) -> Answer | None:
        """Selects the answer from the rounds so far; none if a guardrail blocked it."""
        if self.context.all_guardrails and answer_block(self.rounds) is not None:
            return None
        # An earlier step's reply won't do where the policy says who answers, or where only the last step was told what
        # form the answer must have.
        requires_form = self.request.response_format is not None or self.request.requires_call
        allow_evidence = self.policy.pinned is None and not requires_form
        if self.context.guardrails and checks_answer(self.context):  # an earlier reply was not checked as an answer
            allow_evidence = False
        return select_answer(self.rounds, streamed_text=self.streamed_text, allow_evidence=allow_evidence)

    def _failure(self) -> str:
        """Describes why there is no answer."""
        block = answer_block(self.rounds)
        return join_reasons(list_failures(self.rounds)) if block is None else block.in_words

    def trace(self, interruption: str | None) -> Trace:
        """Builds the trace of the run as it is now.

        Args:
            interruption: why the run ended early; it has no answer then.
        """
        versions, setup = _describe_setup(
            ByIdentity(self.planner.setup), ByIdentity(self.pool.setups), self.access, self.context.retries
        )
        usage = total([call.usage for round_ in self.rounds for call in round_.calls])
        answer = self.answer() if interruption is None else None
        result = answer and self.rounds[answer.round].results[answer.step]
        return Trace(
            id=self.id,
            created=self.created,
            request=self.request,
            policy=self.policy,
            limits=self.limits,
            planner=self.planner.model.name,
            rounds=tuple(self.rounds),
            answer=answer,
            completion=to_completion(result, usage, self.streamed_text) if result else None,
            error=None if answer else interruption or self._failure(),
            seconds=self.context.elapsed(),
            delimiter_key=self.context.delimiter_key,
            versions=versions,
            setup=setup,
        )

    def finish(self, interruption: str | None = None) -> Trace:
        """Ends the run: reports its usage, emits `Finished`, and returns the trace."""
        self._add_unplanned_round(interruption)
        trace = self.trace(interruption)
        report_run(trace, self.context.began, self.previous_rounds)
        if trace.answer is not None and trace.answer.source == "evidence":
            self._log_evidence(trace.answer)
        if self.context.has_listener:
            if trace.completion is not None and trace.completion.text and not self.streamed_text:
                self._emit_answer(trace.completion)
            self.context.emit(Finished(trace=trace))
        return trace

    def _emit_answer(self, completion: Completion) -> None:
        """Emits an answer that was not streamed, in one piece after its reasoning."""
        if completion.message.reasoning and not self.has_streamed_reasoning:
            self.context.emit(ReasoningDelta(text=completion.message.reasoning))
        self.context.emit(AnswerDelta(text=completion.text, is_refusal=completion.is_refusal))

    def _add_unplanned_round(self, interruption: str | None) -> None:
        """Adds the round that ended before it had a plan: an interrupted one as it was, and records of guardrails."""
        round_ = self.interrupted
        if round_ is not None and not interruption:  # the limits left no round for a new plan
            # Only a run without an answer may contain unchecked replies, so its steps stay as calls only.
            round_ = Round(plan=round_.plan.model_copy(update={"calls": round_.calls}))
        if round_ is None and self.guard.has_record:
            round_ = Round(plan=PlanRecord(source="planner", errors=(interruption,) if interruption else ()))
        if round_ is not None:
            self.rounds.append(round_.model_copy(update={"plan": self.guard.move_record(round_.plan)}))

    def _log_evidence(self, answer: Answer) -> None:
        last = self.rounds[answer.round].results[-1]
        reason = format_for_log(last.error or last.status, self.pool[last.step.worker].model)
        log.warning("%s: the last step failed, so the reply of step %d answers: %s", self.id, answer.step + 1, reason)


@lru_cache(maxsize=256)
def _describe_setup(
    planner: ByIdentity[PlannerSetup], workers: ByIdentity[tuple[WorkerSetup, ...]], access: AccessMode, retries: int
) -> tuple[Versions, Setup]:
    """Describes a conductor's configuration for its traces; cached, because it is the same in all of its runs."""
    prompt = prompt_version(planner.value.instructions, *(worker.instructions for worker in workers.value))
    setup = Setup(planner=planner.value, workers=workers.value, access=access, retries=retries)
    return Versions(package=package_version(), prompt=prompt), setup
