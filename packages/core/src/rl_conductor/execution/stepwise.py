"""`Stepwise`: one round whose steps a host starts itself, because it has a scheduler and a store of its own.

The host keeps the results (they are plain values) and decides when a step runs. What a step is told, who does it,
what it may cost and what happens when it fails is settled where it always is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rl_conductor.errors import ConfigError, WorkflowValidationError
from rl_conductor.execution.answer import answered
from rl_conductor.execution.executor import Execution
from rl_conductor.execution.run import Run
from rl_conductor.trace.events import Event, Listener, WorkflowPlanned, ignore
from rl_conductor.trace.observers import Begun, observed
from rl_conductor.trace.trace import PlanRecord, Round, StepResult, Trace
from rl_conductor.workflow.workflow import Workflow


class Stepwise:
    """The steps of one plan, each run when it is asked for. Steps may run side by side, on one event loop."""

    def __init__(self, run: Run, plan: PlanRecord, begun: Callable[[], Begun]) -> None:
        self._run = run
        self._listener = run.emit
        self._begun = begun
        ended = (call.started + call.seconds for one in run.before for call in one.calls)
        self._round_begun = replace(begun(), elapsed=max(ended, default=0.0))
        self._charged: set[int] = set()
        run.check_earlier_rounds()
        self.plan = run.take_up(plan, run.execution())
        """The plan as it runs."""
        if self.plan.workflow is None:
            raise ConfigError("this plan accepts the answer of the round before, so it has no steps to run")
        self.workflow: Workflow = self.plan.workflow
        run.caller.carry_on(plan.calls)

    async def step(self, index: int, done: Collection[StepResult] = ()) -> StepResult:
        """Run one step.

        Args:
            index: which, from 0.
            done: the results so far, with at least those that this step may read. What they used counts towards
                the limits, also when it was another process that ran them.

        Raises:
            ConfigError: a result is missing that the step may read.
            WorkflowValidationError: the policy does not allow one of the results.
        """
        self._expect(self.workflow.steps[index].access, done)
        self._charge(done)
        execution = self._restored(done)
        self._charged.add(index)
        with self._observed(self._begun()) as execution.emit:
            return await execution.run_step(self.workflow, index)

    def finish(self, done: Collection[StepResult]) -> Trace:
        """The trace of the whole run, once every step is done that the answer depends on.

        Raises:
            ConfigError: one of them is not.
            WorkflowValidationError: the policy does not allow one of the results.
            RunError: there is no answer; `error.trace` says why and what it cost.
        """
        self._gather(done)
        with self._observed(self._round_begun) as self._run.emit:
            trace = self._run.finish()
        return answered(trace)

    def has_answer(self, done: Collection[StepResult]) -> bool:
        """Whether `finish` will have an answer, for hosts that would rather run a step again than store its failure.

        Raises:
            ConfigError: a step is not done that the answer depends on.
        """
        self._gather(done)
        return self._run.answer() is not None

    @property
    def again(self) -> bool:
        """Whether another round may follow, now that this one is finished."""
        return self._run.may_go_on(self.plan)

    def _gather(self, done: Collection[StepResult]) -> None:
        self._expect(self.workflow.needed, done)
        self._charge(done)
        del self._run.rounds[len(self._run.before) :]
        execution = self._restored(done)
        execution.workflow = self.workflow
        self._run.rounds.append(Round(plan=self.plan, results=execution.results()))

    @contextmanager
    def _observed(self, begun: Begun) -> Iterator[Listener]:
        """Observers learn of the plan at each entry: it may be another process that was told of it before."""
        with observed(begun, ignore) as told:
            told(WorkflowPlanned(round=len(self._run.before), plan=self.plan))

            def tell(event: Event) -> None:
                told(event)
                self._listener(event)

            yield tell

    def _restored(self, done: Collection[StepResult]) -> Execution:
        execution = self._run.execution()
        self._run.take_up(self.plan, execution)
        self._run.prepare(execution, self.plan)
        errors = self._run.restored(self.workflow, tuple(done), execution).errors
        if errors:
            raise WorkflowValidationError(*errors)
        execution.restore(done)
        return execution

    def _expect(self, indices: Collection[int], done: Collection[StepResult]) -> None:
        missing = sorted(set(indices) - {result.index for result in done})
        if missing:
            names = ", ".join(str(index + 1) for index in missing)
            raise ConfigError(f"steps that this depends on are not done: {names}; run them first")

    def _charge(self, done: Collection[StepResult]) -> None:
        fresh = [result for result in done if result.index not in self._charged]
        self._charged.update(result.index for result in fresh)
        self._run.caller.carry_on(call for result in fresh for call in result.calls)
