"""Runs the steps of one round one at a time, for hosts with a scheduler and a store of their own.

The host stores the results, which are plain values, and decides when a step runs. Prompts, fallback workers, limits and
error handling are the same as in `Run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor.errors import ConductorError, ConfigError, GuardrailError, WorkflowValidationError
from rl_conductor.execution.answer import raise_if_unanswered, run_error
from rl_conductor.execution.executor import RoundExecutor
from rl_conductor.execution.plan_source import restorable_results, restored_start
from rl_conductor.execution.run import Run
from rl_conductor.trace.events import Event, Listener, WorkflowPlanned, ignore
from rl_conductor.trace.observers import RunInfo, observe_run
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult, Trace
from rl_conductor.workflow.workflow import Workflow


class Stepwise:
    """Runs the steps of one plan on request; they may run in parallel, on one event loop."""

    def __init__(self, run: Run, plan: PlanRecord) -> None:
        self._run = run
        self._listener = run.context.emit
        ends = (call.started + call.seconds for round_ in run.previous_rounds for call in round_.calls)
        self._round_info = replace(run.info(), elapsed=max(ends, default=0.0))
        self._charged: set[int] = set()
        self._checking = PerLoop(asyncio.Lock)
        run.allowed.check_history(run.previous_rounds)
        self.plan = restored_start(run, plan).plan
        """The plan as it runs."""
        if self.plan.workflow is None:
            raise ConfigError(
                "this plan accepts the answer of the round before, so it has no steps to run; check that its "
                "workflow is not None first"
            )
        self.workflow: Workflow = self.plan.workflow
        run.context.charge_previous(plan.calls)

    async def step(
        self, index: int, results: Collection[StepResult] = (), *, calls: list[Call] | None = None
    ) -> StepResult:
        """Runs one step and returns its result.

        Args:
            index: position of the step in the plan, from 0.
            results: results so far, at least those of the steps in its access list. Their usage counts towards the
                limits, even if another process ran them.
            calls: those that the step made before it paused; they count in the same way. It gets those that the step
                makes now, also if it pauses again.

        Raises:
            ConfigError: the result of a step in its access list is missing.
            IndexError: the plan has no step at this position.
            PolicyError: the policy does not allow a guardrail to read the question.
            RunError: a guardrail refused the question, or failed; or the step failed with an error that ends the run.
            WorkflowValidationError: the policy does not allow one of the results.
        """
        if self._run.context.guardrails:
            await self.check_input()
        self._require(self.workflow.steps[index].access, results)
        self._charge(results)
        executor = self._restore(results)
        self._charged.add(index)
        calls = [] if calls is None else calls
        self._run.context.charge_previous(calls)
        with self._observe(self._run.info) as emit:
            executor.round.run = self._run.context.with_listener(emit)
            try:
                return await executor.run_step(self.workflow, index, calls)
            except ConductorError as error:
                if not error.ends_run:
                    raise
                self._run.rounds[len(self._run.previous_rounds) :] = [executor.to_round(self.plan)]
                raise run_error(self._run.finish(self._run.locate(error)), ends_run=True) from None

    async def check_input(self) -> None:
        """Lets the guardrails check the question, once.

        `step` does so itself; call it before `finish` in a process that runs no step.

        Raises:
            RunError: a guardrail refused the question, or failed.
            PolicyError: a guardrail's model may not read the question.
        """
        async with self._checking.get():
            try:
                await self._run.check_input()
            except GuardrailError as error:
                raise run_error(self._run.finish(str(error))) from None
            self.plan = self._run.guard.move_record(self.plan)

    def finish(self, results: Collection[StepResult]) -> Trace:
        """Returns the trace of the whole run, given the results of all steps that the answer depends on.

        Raises:
            ConfigError: one of these results is missing, or guardrails have not checked the question.
            WorkflowValidationError: the policy does not allow one of the results.
            RunError: there is no answer; `error.trace` says why and how much the run cost.
        """
        if self._run.context.guardrails and not self._run.guard.is_done:
            raise ConfigError("the guardrails have not checked the question in this process; await check_input() first")
        self._set_results(results)
        with self._observe(lambda: self._round_info) as self._run.context.emit:
            trace = self._run.finish()
        return raise_if_unanswered(trace)

    def has_answer(self, results: Collection[StepResult]) -> bool:
        """Whether `finish` would return an answer, for hosts that retry a failed step instead of storing its result.

        Raises:
            ConfigError: the result of a step that the answer depends on is missing.
        """
        self._set_results(results)
        return self._run.answer() is not None

    @property
    def may_continue(self) -> bool:
        """Whether another round may follow, after `finish`."""
        return self._run.may_continue(self.plan)

    def _set_results(self, results: Collection[StepResult]) -> None:
        self._require(self.workflow.needed, results)
        self._charge(results)
        del self._run.rounds[len(self._run.previous_rounds) :]
        executor = self._restore(results)
        executor.round.workflow = self.workflow
        self._run.rounds.append(Round(plan=self.plan, results=executor.results()))

    @contextmanager
    def _observe(self, info: Callable[[], RunInfo]) -> Iterator[Listener]:
        """Reports the plan to observers each time, because another process may have reported it before."""
        with observe_run(info, ignore) as notify:
            notify(WorkflowPlanned(round=len(self._run.previous_rounds), plan=self.plan))

            def emit(event: Event) -> None:
                notify(event)
                self._listener(event)

            yield emit

    def _restore(self, results: Collection[StepResult]) -> RoundExecutor:
        start = restored_start(self._run, self.plan)
        errors = restorable_results(self._run, start, tuple(results)).errors
        if errors:
            raise WorkflowValidationError(*errors)
        executor = self._run.executor(start)
        executor.round.apply(self.plan)
        executor.restore(results)
        return executor

    def _require(self, indices: Collection[int], results: Collection[StepResult]) -> None:
        missing = sorted(set(indices) - {result.index for result in results})
        if missing:
            names = ", ".join(str(index + 1) for index in missing)
            raise ConfigError(f"steps that this depends on are not done: {names}; run them first")

    def _charge(self, results: Collection[StepResult]) -> None:
        new = [result for result in results if result.index not in self._charged]
        self._charged.update(result.index for result in new)
        self._run.context.charge_previous(call for result in new for call in result.calls)
