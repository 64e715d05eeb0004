"""One run: rounds of planning, executing and judging."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from rl_conductor._internal.version import package_version
from rl_conductor.calls.budget import Ledger, reports
from rl_conductor.calls.model_call import Caller, for_log, log
from rl_conductor.errors import PolicyError, WorkflowValidationError
from rl_conductor.execution.answer import answer_in, answered, completion_of, failures_in
from rl_conductor.execution.executor import Execution, Hedges
from rl_conductor.execution.prompt_version import wording_version
from rl_conductor.execution.restore import Restored, Rules, check_history, restored, resumable, without_continuation
from rl_conductor.planning.fallback import capable, fallback_workflow, one_call
from rl_conductor.planning.planner import Drafting, Planner
from rl_conductor.planning.prompts import with_prompt
from rl_conductor.planning.recursion import later_space, may_hear, reviews
from rl_conductor.planning.router import Tiers
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.text.delimiters import new_key
from rl_conductor.trace.events import AnswerDelta, Finished, Listener, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Answer, PlanRecord, Round, Setup, StepResult, TierDecision, Trace, Versions
from rl_conductor.types import Continuation, Request, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import AccessMode, PlanSpace, Workflow

UNPLANNED = ("single", "tier", "fallback", "continuation")
"""Sources of plans that neither the planner nor the caller wrote."""


@dataclass
class Run:
    """One request on its way to an answer."""

    planner: Planner
    pool: WorkerPool
    request: Request
    policy: Policy
    limits: Limits
    emit: Listener
    access: AccessMode = "binary"
    stream: bool = False
    """Pass the answer on while it is made, as far as it is known to be the answer."""
    retries: int = 2
    keep_prompts: bool = True
    tiers: Tiers | None = None
    fence_key: str = field(default_factory=new_key)
    before: Sequence[Round] = ()
    """Rounds that this run made before it was interrupted, or under another host."""
    rounds: list[Round] = field(default_factory=list)
    said: str = ""
    """What was passed on of the answer while it was made."""
    dropped: list[str] = field(default_factory=list)
    """What of an interrupted run the policy no longer allows, for the record of the next plan."""

    def __post_init__(self) -> None:
        self.caller = Caller(Ledger(self.limits), retries=self.retries, keep_prompts=self.keep_prompts)
        self.hedges = Hedges(self.limits.hedges)
        self.id = f"run-{secrets.token_hex(8)}"
        self.created = datetime.now(UTC)
        self.caller.carry_on(call for one in self.before for call in one.calls)
        self.rounds.extend(self.before)

    async def go(self, workflow: Workflow | None = None) -> Trace:
        """The finished trace; with a `workflow`, the first round runs that instead of planning.

        The last of the rounds `before` is taken up again: its plan stands, and its steps that are done stay done.

        Raises:
            PolicyError: no workflow at all may run.
            WorkflowValidationError: the given workflow may not run.
            LimitError: conductors sit too deep in one another.
            RunError: there is no answer; it carries the trace.
        """
        cut_short: str | None = "cancelled"
        try:
            self.caller.ledger.check_depth()
            await self._rounds(workflow)
            cut_short = None
        except Exception as error:
            cut_short = str(error)
            raise
        finally:
            trace = self.finish(cut_short)
        return answered(trace)

    def finish(self, cut_short: str | None = None) -> Trace:
        """Tell the listener that the run is over."""
        trace = self._trace(cut_short)
        if (told := reports.get()) is not None:
            told.append(trace.usage)
        if trace.answer is not None and trace.answer.source == "evidence":
            self._log_evidence(trace.answer)
        if trace.completion is not None and trace.completion.text and not self.said:
            self.emit(AnswerDelta(text=trace.completion.text))
        self.emit(Finished(trace=trace))
        return trace

    def _log_evidence(self, answer: Answer) -> None:
        last = self.rounds[answer.round].results[-1]
        why = for_log(last.error or last.status, self.pool[last.step.worker].model)
        log.warning("%s: the last step failed, so the reply of step %d answers: %s", self.id, answer.step + 1, why)

    async def plan(self) -> PlanRecord:
        """A plan that is not run. Its workflow is the fall-back's when the planner wrote none."""
        self.caller.ledger.check_depth()
        try:
            return await self.plan_of(self.execution(), ahead=False)
        except asyncio.CancelledError:
            self.finish("cancelled")
            raise

    # -------------------------------------------------------------------------------------- rounds

    async def _rounds(self, workflow: Workflow | None) -> None:
        self.rounds, self.dropped = resumable(self.rounds, self._first_space, self._rules, self.planner.card)
        interrupted = self.rounds.pop() if self.rounds else None
        while self.number < self.limits.rounds:
            execution = self.execution()
            record = await self.plan_of(execution, workflow=workflow, interrupted=interrupted)
            workflow = interrupted = None
            await self._execute(execution, record)
            if not self.may_go_on(record):
                break

    async def plan_of(
        self,
        execution: Execution,
        *,
        workflow: Workflow | None = None,
        interrupted: Round | None = None,
        ahead: bool = True,
    ) -> PlanRecord:
        """The plan of the round at hand, wherever it comes from; what was done of it before stays done."""
        going_on = self.request.continuation
        if going_on is not None and (why := self._rules.against(going_on, self.space())):
            self.dropped.append(f"tool calls of {going_on.worker!r} are not continued: {why}")
            going_on = None
        if going_on is not None:
            record = self._going_on(going_on, execution)
        elif interrupted is not None and self._may_stand(interrupted.plan, execution):
            record = self.take_up(interrupted.plan, execution)
        elif workflow is not None:
            record = self._given(workflow, execution)
        else:
            execution.wasted = interrupted.calls if interrupted else ()
            return await self._planned(execution, ahead=ahead)
        done = self.restored(record.workflow, interrupted.results if interrupted else (), execution)
        self.dropped += done.errors
        record = self._announced(record)
        execution.restore(done.kept)
        execution.wasted = done.abandoned_calls
        for result in done.kept:
            self.emit(StepFinished(round=self.number, result=result))
        return record

    def restored(self, workflow: Workflow | None, results: Sequence[StepResult], execution: Execution) -> Restored:
        """Which steps of an earlier attempt at this round stay done; the others are run again."""
        if workflow is None:
            return Restored((), (), ())
        return restored(workflow, results, execution.space, self._rules)

    def _may_stand(self, record: PlanRecord, execution: Execution) -> bool:
        """Whether a plan of the interrupted run is made and may still run; the caller's own is never replaced."""
        if not record.is_made or record.source == "continuation":
            return False
        if record.workflow is None or record.source == "given":
            return True
        broken = self._rules.broken_by(record.workflow, execution.space)
        if broken:
            self.dropped.append(f"the plan of the interrupted run is dropped: {'; '.join(broken)}")
        return not broken

    def check_earlier_rounds(self) -> None:
        """See to it that the policy allows what the rounds before this one hold, for a host that keeps them itself.

        Raises:
            WorkflowValidationError: it does not.
        """
        check_history(self.rounds, self._first_space, self._rules, self.planner.card)

    def take_up(self, record: PlanRecord, execution: Execution) -> PlanRecord:
        """A plan that was made before, if it may still run.

        Raises:
            WorkflowValidationError: it may not.
        """
        going_on = self.request.continuation
        if record.source == "continuation" and going_on is not None:
            if why := self._rules.against(going_on, self.space()):
                raise WorkflowValidationError(f"tool calls of {going_on.worker!r} are not continued: {why}")
            return self._going_on(going_on, execution)
        if record.workflow is None:
            return record
        if record.source == "given":  # perhaps in place of one that was written, and had to be paid
            self._widen(execution, record.workflow)
        broken = self._rules.broken_by(record.workflow, execution.space)
        if broken:
            raise WorkflowValidationError(*broken)
        return record

    def _given(self, workflow: Workflow, execution: Execution) -> PlanRecord:
        """The caller's own plan: the policy binds it, but not what only keeps the Conductor's plans easy to write."""
        self._widen(execution, workflow)
        return PlanRecord(source="given", workflow=execution.space.check(workflow))

    def _widen(self, execution: Execution, workflow: Workflow) -> None:
        longest = max(len(step.subtask) for step in workflow.steps)
        execution.space = execution.space.model_copy(update={"access": "positional", "subtask_chars": longest})

    @cached_property
    def _shown(self) -> Request:
        """The request without what is meant for us: a conductor in the pool would take it for its own."""
        return without_continuation(self.request)

    @cached_property
    def _rules(self) -> Rules:
        return Rules(self.policy, self.pool)

    def _going_on(self, left: Continuation, execution: Execution) -> PlanRecord:
        """Bring the results of its tool calls to the worker that made them, without planning."""
        if execution.space.unreadable:  # the prompt holds replies that another worker might not be allowed to read
            execution.space = execution.space.model_copy(update={"allowed": frozenset({left.worker})})
        shown = execution.request
        execution.request = shown.model_copy(update={"messages": with_prompt(shown.messages, left.prompt)})
        return PlanRecord(source="continuation", workflow=one_call(left.worker))

    async def _execute(self, execution: Execution, record: PlanRecord) -> None:
        if record.workflow is None:  # the answer of the round before stands
            self.rounds.append(Round(plan=record))
            return
        self.prepare(execution, record)
        try:
            await execution.run(record.workflow)
        finally:
            self.said = execution.said
            if execution.wasted:
                record = record.model_copy(update={"calls": (*record.calls, *execution.wasted)})
            self.rounds.append(Round(plan=record, results=execution.results()))

    def prepare(self, execution: Execution, record: PlanRecord) -> None:
        """Settle how the steps of this plan are shown to workers, and whether the answer is passed on as it is made."""
        unplanned = record.source in UNPLANNED
        execution.plain = unplanned and record.workflow is not None and len(record.workflow.steps) == 1
        execution.stream = self.stream and (unplanned or self.number + 1 >= self.limits.rounds)

    def may_go_on(self, record: PlanRecord) -> bool:
        """Whether another round may be and makes sense: there is an answer, and the planner may see it."""
        if self.number >= self.limits.rounds or record.workflow is None or record.source in UNPLANNED:
            return False
        reply = self.rounds[-1].results[-1].reply
        if reply is None or reply.tool_calls:
            return False
        heard = may_hear(self.planner.card, self.rounds, self.pool, self.policy)
        return heard and bool(self.space().last_choices)

    @property
    def number(self) -> int:
        """The round at hand, from 0."""
        return len(self.rounds)

    def execution(self) -> Execution:
        """The steps of the round at hand, none of which has been started."""
        return Execution(
            pool=self.pool,
            space=self.space(),
            request=self._shown,
            caller=self.caller,
            fence_key=self.fence_key,
            emit=self.emit,
            number=self.number,
            before=tuple(self.rounds),
            hedges=self.hedges,
        )

    # ------------------------------------------------------------------------------------ planning

    @cached_property
    def _first_space(self) -> PlanSpace:
        self.policy.check_selectors(self.pool.cards, planners=[self.planner.card])
        space = self.policy.space(self.pool.cards, max_steps=self.limits.steps, access=self.access)
        return capable(space, self.pool, self.request)

    def space(self) -> PlanSpace:
        """What may be planned in the round at hand, for this policy, these limits and this request.

        Raises:
            PolicyError: no workflow at all.
        """
        if not self.rounds:
            return self._first_space
        return later_space(self._first_space, self.rounds, self.pool, self.policy)

    def check(self) -> None:
        """See to it that some workflow may run, and that the planner may write it where one is needed.

        Raises:
            PolicyError: not so.
        """
        if not self.space().leaves_no_choice and self.tiers is None:
            self._see_that_the_planner_may_see()

    def _see_that_the_planner_may_see(self) -> None:
        refused = self.policy.data_refused_because(self.planner.card)
        if refused is not None:
            raise PolicyError(
                f"the planner {self.planner.model.name} may not see this request: {refused}; say what it is with "
                "Planner(model=..., card=Card(tags=..., region=...))",
                rule="data_class",
            )

    async def _planned(self, execution: Execution, *, ahead: bool = True) -> PlanRecord:
        """A plan by the planner, or the only one there can be; its first step is started `ahead` where that helps."""
        space = execution.space
        if space.leaves_no_choice:
            return self._announced(PlanRecord(source="single", workflow=fallback_workflow(space, self.pool)))
        tier = self._tier(space)
        if tier is not None and tier.tier == "single":
            return self._announced(PlanRecord(source="tier", workflow=one_call(tier.worker), tier=tier))
        self._see_that_the_planner_may_see()
        draft = self._draft(execution, ahead=ahead)
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
        return self._announced(record)

    def _log_fallback(self, record: PlanRecord) -> None:
        instead = "the answer before stands"
        if record.workflow is not None:
            instead = f"{record.workflow.steps[-1].worker} answers alone"
        why = for_log(record.errors[-1], self.planner.model) if record.errors else "no reason is known"
        log.warning("%s has no plan for round %d, so %s: %s", self.id, self.number + 1, instead, why)

    def _tier(self, space: PlanSpace) -> TierDecision | None:
        """What the classifier makes of the request, as far as policy and request let its worker answer alone."""
        if self.tiers is None or self.rounds:
            return None
        decision = self.tiers.decide(self.request)
        if decision.tier == "single" and (why := space.violations(one_call(decision.worker))):
            return decision.model_copy(update={"tier": "conductor", "because": "; ".join(why)})
        return decision

    def _draft(self, execution: Execution, *, ahead: bool) -> Drafting:
        return Drafting(
            conversation=self.request.messages,
            space=execution.space,
            cards=self.pool.cards,
            caller=self.caller,
            fence_key=self.fence_key,
            emit=self.emit,
            number=self.number,
            reviews=reviews(self.rounds, self._first_space, self.planner.spells),
            first_step=lambda step: execution.start(0, step) if ahead else None,
            rejected=execution.abandon,
        )

    def _announced(self, record: PlanRecord) -> PlanRecord:
        if self.dropped:
            record = record.model_copy(update={"errors": (*self.dropped, *record.errors)})
            self.dropped = []
        self.emit(WorkflowPlanned(round=self.number, plan=record))
        return record

    # -------------------------------------------------------------------------------------- answer

    def _trace(self, cut_short: str | None) -> Trace:
        usage = total(call.usage for one in self.rounds for call in one.calls)
        answer = self.answer() if cut_short is None else None
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
            completion=completion_of(result, usage, self.said) if result else None,
            error=None if answer else cut_short or "; ".join(failures_in(self.rounds)),
            seconds=self.caller.elapsed(),
            fence_key=self.fence_key,
            versions=Versions(package=package_version(), prompt=wording_version()),
            setup=Setup(
                planner=self.planner.setup,
                workers=tuple(worker.setup for worker in self.pool.values()),
                access=self.access,
                retries=self.retries,
            ),
        )

    def answer(self) -> Answer | None:
        """Which reply of the rounds so far is the answer."""
        # A reply that was not meant to answer won't do where the policy says who answers, or where only the last step
        # knew what form the answer must have.
        settle = self.policy.pinned is None and self.request.response_format is None
        return answer_in(self.rounds, said=self.said, settle=settle)
