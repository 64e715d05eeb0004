"""Executes one round: starts each step of a plan when it is planned; a step awaits the steps in its access list.

There is no scheduler, and wall time is the critical path. A step's failure is data on its `StepResult`: after its
retries the step moves to another worker that the policy allows, and it fails when no worker is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from rl_conductor.execution.round_context import RoundContext
from rl_conductor.execution.step import StepRun
from rl_conductor.planning.plan_stream import PlanStream, ReadyStep
from rl_conductor.trace.events import StepFinished
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult
from rl_conductor.workflow.workflow import Step, Workflow


@dataclass
class RoundExecutor:
    """Runs the steps of one round."""

    round: RoundContext
    plan: PlanRecord | None = None
    """The plan, once it is complete; the record of an interrupted planning if that failed."""
    abandoned_calls: tuple[Call, ...] = ()
    """Calls of steps that started before the plan was complete and are not in it, or that have to run again in a
    resumed run."""
    _runs: dict[int, StepRun] = field(default_factory=dict)
    _restored: set[int] = field(default_factory=set)
    """Positions of the steps that had finished before the run was interrupted."""

    async def run(self, plan: PlanStream) -> None:
        """Starts each step of `plan` as soon as it is written, and runs the plan once it is complete."""
        try:
            async for item in plan:
                if isinstance(item, PlanRecord):
                    self.plan = item
                elif isinstance(item, ReadyStep):
                    self.start(item.index, item.step)
                else:  # the planner took the steps back
                    await self.abandon()
            if self.plan is None or self.plan.workflow is None:
                return
            last = await self._start_workflow(self.plan.workflow)
        except BaseException:
            await self.abandon()
            raise
        try:
            if last.result is None:
                await last.run()  # waits for all the others through the access lists
        finally:
            if last.result is None:
                await self._cancel(self.round.results)
            if self.round.run.has_listener:
                self._emit_unfinished()

    def start(self, index: int, step: Step) -> None:
        """Starts a step other than the last."""
        run = self._runs[index] = StepRun(self.round, index, step)
        self.round.results[index] = asyncio.create_task(run.run(), name=f"step {index + 1}")

    def restore(self, results: Iterable[StepResult]) -> None:
        """Marks steps as finished, with results from before an interruption or from another host."""
        for result in results:
            calls = list(result.calls)
            self._runs[result.index] = StepRun(self.round, result.index, result.step, calls=calls, result=result)
            self._restored.add(result.index)
            future = self.round.results[result.index] = asyncio.get_running_loop().create_future()
            future.set_result(result)

    async def _start_workflow(self, workflow: Workflow) -> StepRun:
        """Starts every step that the answer still depends on but the last, which it returns.

        Steps that were started early continue if the plan has them.
        """
        end = len(workflow.steps) - 1
        startable = workflow.needed_after(self._restored) - {end}
        await self.abandon(i for i, run in self._runs.items() if not self._is_planned(i, run, workflow, startable))
        self.round.workflow = workflow
        for index in sorted(startable - self._runs.keys()):
            self.start(index, workflow.steps[index])
        last = self._last(workflow)
        self.round.planned.set()
        return last

    def _is_planned(self, index: int, run: StepRun, workflow: Workflow, startable: frozenset[int]) -> bool:
        """Whether `workflow` has this step at this position; the last step is never started early, only restored."""
        return index in self._restored or (index in startable and workflow.steps[index] == run.planned)

    async def run_step(self, workflow: Workflow, index: int, calls: list[Call]) -> StepResult:
        """Runs one step alone, and adds to its `calls`; the steps in its access list must have been restored."""
        self.round.workflow = workflow
        self.round.planned.set()
        is_last = index == len(workflow.steps) - 1
        run = self._last(workflow) if is_last else StepRun(self.round, index, workflow.steps[index])
        self._runs[index], run.calls = run, calls
        return await run.run()

    def _last(self, workflow: Workflow) -> StepRun:
        end = len(workflow.steps) - 1
        if end not in self._runs:
            self._runs[end] = StepRun(self.round, end, workflow.steps[end], last=True)
        return self._runs[end]

    def results(self) -> tuple[StepResult, ...]:
        """Returns the result of every step of the plan; steps that are still running count as failed."""
        steps = self.round.workflow.steps if self.round.workflow else ()
        return tuple([self._result(index, step) for index, step in enumerate(steps)])

    def to_round(self, plan: PlanRecord) -> Round:
        """Returns the trace of the round as it is now, with the calls of abandoned steps added to the plan's."""
        if self.abandoned_calls:
            plan = plan.model_copy(update={"calls": (*plan.calls, *self.abandoned_calls)})
        return Round(plan=plan, results=self.results())

    async def abandon(self, indices: Iterable[int] | None = None) -> None:
        """Cancels steps that are not in the plan, by default all of them, and keeps the record of their calls.

        Steps that read an abandoned step are abandoned, too.
        """
        abandoned = sorted(self._runs if indices is None else indices)
        if not abandoned:
            return
        for index in sorted(self._runs):
            if index not in abandoned and self._runs[index].planned.access.intersection(abandoned):
                abandoned.append(index)
        await self._cancel(abandoned)
        for index in sorted(abandoned):
            self.abandoned_calls += tuple(self._runs.pop(index).calls)
            self.round.results.pop(index, None)
            self.round.steps.pop(index, None)

    async def _cancel(self, indices: Iterable[int]) -> None:
        """Cancels these steps and waits until each has cleaned up."""
        results = [self.round.results[index] for index in indices if index in self.round.results]
        for result in results:
            result.cancel()
        await asyncio.gather(*results, return_exceptions=True)

    def _emit_unfinished(self) -> None:
        for result in self.results():
            if result.index not in self._runs or self._runs[result.index].result is None:
                self.round.run.emit(StepFinished(round=self.round.number, result=result))

    def _result(self, index: int, planned: Step) -> StepResult:
        run = self._runs.get(index)
        if run is None:
            return StepResult(index=index, step=planned, planned_worker=planned.worker, status="skipped")
        if run.result is None:
            return run.interrupted()
        return run.result
