"""Runs a `Workflow` over a `WorkerPool`: one task per step, which awaits the steps in its access list.

There is no scheduler, and wall time is the critical path. A step's failure is data on its `StepResult`: after its
retries the step moves to another worker that the policy allows, and it fails when no worker is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rl_conductor.calls.model_call import ModelCaller
from rl_conductor.errors import ConductorError, LimitError
from rl_conductor.planning.prompts import Evidence, prompt_in, with_prompt, worker_prompt
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.events import AnswerDelta, Listener, StepFinished, StepStarted
from rl_conductor.trace.trace import Call, Round, StepResult
from rl_conductor.types import Completion, Continuation, Message, Request, Sampling
from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow

NO_REPLY = "(no reply: this step failed)"


@dataclass
class Hedges:
    """The number of hedged requests (second calls because a first one is slow) that a run may still make."""

    remaining: int = 0


@dataclass
class Execution:
    """Runs the steps of one round, which share a pool, a request and a budget."""

    pool: WorkerPool
    space: PlanSpace
    request: Request
    """The caller's request: every worker sees its conversation; its other fields apply to the final step only."""
    caller: ModelCaller
    fence_key: str
    emit: Listener
    number: int = 0
    """The number of the round, from 0."""
    previous_rounds: Sequence[Round] = ()
    """Read by steps with `recall`."""
    hedges: Hedges = field(default_factory=Hedges)
    passthrough: bool = False
    """Send the worker the bare conversation, without a subtask, because the plan is a single step."""
    stream: bool = False
    """Emit the final step's reply as it is generated."""
    streamed_text: str = ""
    """The part of it that was emitted."""
    workflow: Workflow | None = None
    """The plan, once it is complete."""
    abandoned_calls: tuple[Call, ...] = ()
    """Calls of steps that started before the plan was complete and are not in it, or that have to run again in a
    resumed run."""
    _runs: dict[int, _StepRun] = field(default_factory=dict)
    _tasks: dict[int, asyncio.Future[StepResult]] = field(default_factory=dict)
    _planned: asyncio.Event = field(default_factory=asyncio.Event)

    @cached_property
    def question(self) -> str:
        """The text of the last user message."""
        return prompt_in(self.request.messages)

    def start(self, index: int, step: Step) -> None:
        """Starts a step other than the last, possibly before the rest of the plan is written."""
        self._runs[index] = _StepRun(self, index, step)
        self._tasks[index] = asyncio.create_task(self._runs[index].run(), name=f"step {index + 1}")

    def restore(self, results: Iterable[StepResult]) -> None:
        """Marks steps as finished, with results from before an interruption or from another host."""
        for result in results:
            run = _StepRun(self, result.index, result.step, calls=list(result.calls), result=result, restored=True)
            self._runs[result.index] = run
            self._tasks[result.index] = asyncio.get_running_loop().create_future()
            self._tasks[result.index].set_result(result)

    async def run(self, workflow: Workflow) -> None:
        """Runs every step that the answer depends on, so that `results` is complete.

        A step that was started early continues if the plan contains it, and is cancelled otherwise.
        """
        if not all(run.is_in(workflow) for run in self._runs.values()):
            self.abandoned_calls += await self.abandon()
        self.workflow = workflow
        end = len(workflow.steps) - 1
        for index in sorted(workflow.needed - self._tasks.keys() - {end}):
            self.start(index, workflow.steps[index])
        last = self._last(workflow)
        self._planned.set()
        try:
            if last.result is None:
                await last.run()  # waits for all the others through the access lists
        finally:
            if last.result is None:
                await self._cancel()
            self._emit_unfinished()

    async def run_step(self, workflow: Workflow, index: int) -> StepResult:
        """Runs one step alone; the steps in its access list must have been restored."""
        self.workflow = workflow
        self._planned.set()
        end = len(workflow.steps) - 1
        run = self._last(workflow) if index == end else _StepRun(self, index, workflow.steps[index])
        self._runs[index] = run
        return await run.run()

    def _last(self, workflow: Workflow) -> _StepRun:
        end = len(workflow.steps) - 1
        return self._runs.setdefault(end, _StepRun(self, end, workflow.steps[end], last=True))

    def results(self) -> tuple[StepResult, ...]:
        """The result of every step of the plan; steps that are still running count as failed."""
        steps = self.workflow.steps if self.workflow else ()
        return tuple(self._result(index, step) for index, step in enumerate(steps))

    async def abandon(self) -> tuple[Call, ...]:
        """Cancels all steps because their plan was rejected, and returns their calls."""
        await self._cancel()
        calls = tuple(call for run in self._runs.values() for call in run.calls)
        self._runs.clear()
        self._tasks.clear()
        return calls

    async def _cancel(self) -> None:
        """Cancels every step and waits until each has cleaned up."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _emit_unfinished(self) -> None:
        for result in self.results():
            if result.index not in self._runs or self._runs[result.index].result is None:
                self.emit(StepFinished(round=self.number, result=result))

    async def replies(self, access: Collection[int]) -> list[StepResult]:
        """Waits for the steps in `access` and returns their results."""
        waiting = [task for task in (self._tasks[i] for i in access) if not task.done()]
        if waiting:  # not `await task`: a task that swallows our cancellation must not keep us from ending
            finished, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for task in finished:
                task.result()  # raises only on a bug, and then there is no point in waiting for the others
        return [self._tasks[i].result() for i in sorted(access)]

    def sources(self, index: int) -> frozenset[str]:
        """Names of the workers with replies that may have reached this step, directly or through other steps."""
        assert self.workflow is not None
        steps = [self._runs[i].step if i in self._runs else step for i, step in enumerate(self.workflow.steps)]
        reached = Workflow(steps=tuple(steps)).sources[index]
        recalls = any(steps[i].recall for i in (index, *reached))
        recalled = (
            result.step.worker
            for round_ in self.previous_rounds
            for result in round_.results
            if recalls and result.reply
        )
        return frozenset((*(steps[i].worker for i in reached), *recalled))

    async def permits(self, index: int, step: Step) -> bool:
        """Whether the policy allows `step` at `index`, given the workers that run the other steps now."""
        await self._planned.wait()
        assert self.workflow is not None
        steps = [self._runs[i].step if i in self._runs else step for i, step in enumerate(self.workflow.steps)]
        steps[index] = step
        return not self.space.violations(Workflow(steps=tuple(steps)))

    def _result(self, index: int, planned: Step) -> StepResult:
        run = self._runs.get(index)
        if run is None:
            return StepResult(index=index, step=planned, planned_worker=planned.worker, status="skipped")
        return run.result or StepResult(
            index=index,
            step=run.step,
            planned_worker=planned.worker,
            status="failed",
            error="cancelled",
            calls=tuple(run.calls),
        )


@dataclass
class _StepRun:
    """The run of one step: its current worker, its calls and errors so far, and its result."""

    execution: Execution
    index: int
    step: Step
    """As run: its worker is the current one."""
    last: bool = False
    calls: list[Call] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    result: StepResult | None = None
    restored: bool = False
    """Whether it had finished before the run was interrupted."""

    def __post_init__(self) -> None:
        self.planned = self.step

    def is_in(self, workflow: Workflow) -> bool:
        """Whether `workflow` has this step at this index; the last step is never started early, only restored."""
        startable = workflow.needed - {len(workflow.steps) - 1}
        return self.restored or (self.index in startable and workflow.steps[self.index] == self.planned)

    async def run(self) -> StepResult:
        """Waits for the steps in the access list, calls a worker, and emits the result."""
        inputs = await self.execution.replies(self.step.access)
        started = self.execution.caller.elapsed()
        prompt = self._prompt(inputs)
        reply = await self._reply(prompt)
        if reply is not None and reply.tool_calls:
            sources = self.execution.sources(self.index)
            continuation = Continuation(worker=self.step.worker, prompt=prompt, sources=sources)
            reply = reply.model_copy(update={"continuation": continuation})
        self.result = StepResult(
            index=self.index,
            step=self.step,
            planned_worker=self.planned.worker,
            status="failed" if reply is None else "ok",
            reply=reply,
            error="; ".join(self.errors) or None,
            calls=tuple(self.calls),
            started=started,
            seconds=self.execution.caller.elapsed() - started,
        )
        self.execution.emit(StepFinished(round=self.execution.number, result=self.result))
        return self.result

    # ------------------------------------------------------------------------------- the request

    def _prompt(self, inputs: Sequence[StepResult]) -> str:
        run = self.execution
        if run.passthrough:
            return run.question
        evidence = self._earlier_rounds() + [_evidence(str(result.index + 1), result) for result in inputs]
        return worker_prompt(run.question, evidence, self.step.subtask, key=run.fence_key)

    def _earlier_rounds(self) -> list[Evidence]:
        if not self.step.recall:
            return []
        return [
            _evidence(f"{result.index + 1} of round {number + 1}", result)
            for number, round_ in enumerate(self.execution.previous_rounds)
            for result in round_.results
            if result.status != "skipped"
        ]

    def _request(self, prompt: str, worker: Worker) -> Request:
        request = self.execution.request
        messages = request.messages if self.execution.passthrough else with_prompt(request.messages, prompt)
        if not self.last:
            return Request(messages=messages, sampling=worker.sampling, timeout=worker.timeout)
        timeout = request.timeout if worker.timeout is None else worker.timeout
        sampling = _override(worker.sampling, request.sampling)
        return request.model_copy(update={"messages": messages, "sampling": sampling, "timeout": timeout})

    # --------------------------------------------------------------------------------- the worker

    async def _reply(self, prompt: str) -> Message | None:
        """Returns the first successful reply, of the planned worker or of another that the policy allows."""
        tried: set[str] = set()
        while True:
            worker = self.execution.pool[self.step.worker]
            tried.add(worker.name)
            try:
                completion = await self._call(worker, prompt, tried)
            except ConductorError as error:
                self.errors.append(f"{worker.name}: {error}")
                out_of_time = isinstance(error, LimitError) and error.limit == "seconds"
                if out_of_time or self.execution.streamed_text or not await self._replace(tried):
                    return None
            else:
                return completion.message

    async def _replace(self, tried: Collection[str]) -> bool:
        step = await self._fallback_step(tried)
        if step is not None:
            self.step = step
        return step is not None

    async def _fallback_step(self, tried: Collection[str]) -> Step | None:
        """Assigns the step to the most accurate other worker that the policy allows; `None` without one."""
        run = self.execution
        names = [name for name in run.space.choices if name not in tried]
        for name in sorted(names, key=lambda name: -run.pool[name].card.mean_accuracy):
            step = self.step.model_copy(update={"worker": name})
            if await run.permits(self.index, step):
                return step
        return None

    async def _call(self, worker: Worker, prompt: str, tried: set[str]) -> Completion:
        if worker.hedge_after is None or self._streams:
            return await self._call_worker(worker, prompt)
        first = asyncio.create_task(self._call_worker(worker, prompt))
        steps = {first: self.step}
        try:
            await asyncio.wait({first}, timeout=worker.hedge_after)
            if not first.done():
                await self._hedge(steps, prompt, tried)
            return await self._first_success(steps)
        finally:
            for task in steps:
                task.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    async def _hedge(self, steps: dict[asyncio.Task[Completion], Step], prompt: str, tried: set[str]) -> None:
        other = await self._fallback_step(tried)
        late = any(task.done() for task in steps)  # the fallback worker is known only once the plan is complete
        if other is not None and not late and self.execution.hedges.remaining > 0:
            self.execution.hedges.remaining -= 1
            tried.add(other.worker)
            steps[asyncio.create_task(self._call_worker(self.execution.pool[other.worker], prompt))] = other

    async def _first_success(self, steps: dict[asyncio.Task[Completion], Step]) -> Completion:
        """Returns the first successful reply; raises the first error when all tasks fail."""
        waiting, errors = set(steps), []
        while waiting:
            finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in (task for task in steps if task in finished):
                error = task.exception()
                if error is not None:
                    errors.append(error)
                else:  # still allowed: the steps it reads have finished, and none that reads it has started
                    self.step = steps[task]
                    return task.result()
        raise errors[0]

    async def _call_worker(self, worker: Worker, prompt: str) -> Completion:
        run = self.execution

        def started(attempt: int) -> None:
            run.emit(StepStarted(round=run.number, index=self.index, worker=worker.name, attempt=attempt))

        return await run.caller.complete(
            worker.model,
            self._request(prompt, worker),
            calls=self.calls,
            worker=worker.name,
            slot=worker.slots.get() if worker.slots else None,
            on_attempt=started,
            on_text=self._emit_text if self._streams else None,
            reasoning=worker.reasoning,
        )

    def _emit_text(self, text: str) -> None:
        self.execution.streamed_text += text
        self.execution.emit(AnswerDelta(text=text))

    @property
    def _streams(self) -> bool:
        return self.execution.stream and self.last


def _evidence(label: str, result: StepResult) -> Evidence:
    reply = result.text if result.status == "ok" else NO_REPLY
    return Evidence(label=label, subtask=result.step.subtask, reply=reply)


def _override(defaults: Sampling, sampling: Sampling) -> Sampling:
    """Returns `defaults`, overridden by the fields that are set in `sampling`."""
    update = {name: value for name in sampling.model_fields_set if (value := getattr(sampling, name)) is not None}
    return defaults.model_copy(update=update)
