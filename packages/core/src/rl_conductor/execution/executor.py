"""Runs a `Workflow` over a `WorkerPool`: a task for each step, which awaits the steps that it may read.

There is no scheduler, and wall time is the critical path. A step's failure is data on its `StepResult`:
after retries of the call it goes to another worker that the policy allows, and only then is it failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rl_conductor.calls.model_call import Caller
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
    """How many more second calls a run may make because a first one is slow."""

    left: int = 0


@dataclass
class Execution:
    """The steps of one round: where they run, and what they share."""

    pool: WorkerPool
    space: PlanSpace
    request: Request
    """The caller's. Its conversation is shown to every worker; the rest of it applies to the final step."""
    caller: Caller
    fence_key: str
    emit: Listener
    number: int = 0
    """Which round this is, from 0."""
    before: Sequence[Round] = ()
    """The rounds before, for steps that recall them."""
    hedges: Hedges = field(default_factory=Hedges)
    plain: bool = False
    """Show the worker the bare conversation: nothing was split, so there is nothing to explain."""
    stream: bool = False
    """Pass the final step's reply on piece by piece as it is made."""
    said: str = ""
    """What was passed on of it."""
    workflow: Workflow | None = None
    """The plan, once it is whole."""
    wasted: tuple[Call, ...] = ()
    """Calls of steps that came to nothing: started ahead of a plan which then had no use for them, or cut short in
    a run that was taken up again."""
    _runs: dict[int, _StepRun] = field(default_factory=dict)
    _tasks: dict[int, asyncio.Future[StepResult]] = field(default_factory=dict)
    _planned: asyncio.Event = field(default_factory=asyncio.Event)

    @cached_property
    def question(self) -> str:
        """The last thing that the user said."""
        return prompt_in(self.request.messages)

    def start(self, index: int, step: Step) -> None:
        """Start a step that is not the last; ahead of the rest of its plan, if that is still being written."""
        self._runs[index] = _StepRun(self, index, step)
        self._tasks[index] = asyncio.create_task(self._runs[index].run(), name=f"step {index + 1}")

    def restore(self, results: Iterable[StepResult]) -> None:
        """Take these steps as done: their workers replied before the run was interrupted, or under another host."""
        for result in results:
            run = _StepRun(self, result.index, result.step, calls=list(result.calls), result=result, restored=True)
            self._runs[result.index] = run
            self._tasks[result.index] = asyncio.get_running_loop().create_future()
            self._tasks[result.index].set_result(result)

    async def run(self, workflow: Workflow) -> None:
        """Run every step that the answer can depend on; `results` then says what became of each.

        A step that was started ahead goes on when the plan has it still, and is cancelled when it has not.
        """
        if not all(run.stands_in(workflow) for run in self._runs.values()):
            self.wasted += await self.abandon()
        self.workflow = workflow
        end = len(workflow.steps) - 1
        for index in sorted(workflow.needed - self._tasks.keys() - {end}):
            self.start(index, workflow.steps[index])
        last = self._last(workflow)
        self._planned.set()
        try:
            if last.result is None:
                await last.run()  # by way of what it reads, it waits for all the others
        finally:
            if last.result is None:
                await self._cancel()
            self._report_the_unfinished()

    async def run_step(self, workflow: Workflow, index: int) -> StepResult:
        """Run this step alone; what it reads must have been restored."""
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
        """What became of every step so far: cut short, those that were still running count as failed."""
        steps = self.workflow.steps if self.workflow else ()
        return tuple(self._result(index, step) for index, step in enumerate(steps))

    async def abandon(self) -> tuple[Call, ...]:
        """Drop the steps of a plan that came to nothing, and return the calls they had made."""
        await self._cancel()
        made = tuple(call for run in self._runs.values() for call in run.calls)
        self._runs.clear()
        self._tasks.clear()
        return made

    async def _cancel(self) -> None:
        """Cancel every step and wait until each has cleaned up."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _report_the_unfinished(self) -> None:
        for result in self.results():
            if result.index not in self._runs or self._runs[result.index].result is None:
                self.emit(StepFinished(round=self.number, result=result))

    async def replies(self, access: Collection[int]) -> list[StepResult]:
        """The results of the steps in `access`, once all are there."""
        waiting = [task for task in (self._tasks[i] for i in access) if not task.done()]
        if waiting:  # not `await task`: what a task makes of our cancellation must not keep us from ending
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()  # which raises only what should be impossible, and then nothing else is waited for
        return [self._tasks[i].result() for i in sorted(access)]

    def sources(self, index: int) -> frozenset[str]:
        """The workers whose replies can have reached this step."""
        assert self.workflow is not None
        steps = [self._runs[i].step if i in self._runs else step for i, step in enumerate(self.workflow.steps)]
        reached = Workflow(steps=tuple(steps)).sources[index]
        recalls = any(steps[i].recall for i in (index, *reached))
        recalled = (result.step.worker for one in self.before for result in one.results if recalls and result.reply)
        return frozenset((*(steps[i].worker for i in reached), *recalled))

    async def permits(self, index: int, step: Step) -> bool:
        """Whether `step` may stand at `index` beside the other steps as they run now."""
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
    """One step on its way: who has it now, and every call made for it."""

    execution: Execution
    index: int
    step: Step
    """As run: its worker is the one that has it now."""
    last: bool = False
    calls: list[Call] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    result: StepResult | None = None
    restored: bool = False
    """Whether it was done before the run was interrupted."""

    def __post_init__(self) -> None:
        self.planned = self.step

    def stands_in(self, workflow: Workflow) -> bool:
        """Whether `workflow` has this very step in this place, which the last step has only when it was restored."""
        ahead = workflow.needed - {len(workflow.steps) - 1}
        return self.restored or (self.index in ahead and workflow.steps[self.index] == self.planned)

    async def run(self) -> StepResult:
        """Wait for what the step may read, ask a worker, and report."""
        seen = await self.execution.replies(self.step.access)
        started = self.execution.caller.elapsed()
        prompt = self._prompt(seen)
        reply = await self._reply(prompt)
        if reply is not None and reply.tool_calls:
            going_on = Continuation(worker=self.step.worker, prompt=prompt, sources=self.execution.sources(self.index))
            reply = reply.model_copy(update={"continuation": going_on})
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

    # ---------------------------------------------------------------------------- what is asked

    def _prompt(self, seen: Sequence[StepResult]) -> str:
        run = self.execution
        if run.plain:
            return run.question
        evidence = self._earlier_rounds() + [_evidence(str(result.index + 1), result) for result in seen]
        return worker_prompt(run.question, evidence, self.step.subtask, key=run.fence_key)

    def _earlier_rounds(self) -> list[Evidence]:
        if not self.step.recall:
            return []
        return [
            _evidence(f"{result.index + 1} of round {number + 1}", result)
            for number, one in enumerate(self.execution.before)
            for result in one.results
            if result.status != "skipped"
        ]

    def _request(self, prompt: str, worker: Worker) -> Request:
        asked = self.execution.request
        messages = asked.messages if self.execution.plain else with_prompt(asked.messages, prompt)
        if not self.last:
            return Request(messages=messages, sampling=worker.sampling, timeout=worker.timeout)
        given = asked.timeout if worker.timeout is None else worker.timeout
        sampling = _over(worker.sampling, asked.sampling)
        return asked.model_copy(update={"messages": messages, "sampling": sampling, "timeout": given})

    # -------------------------------------------------------------------------------- who is asked

    async def _reply(self, prompt: str) -> Message | None:
        """The first good reply: of the planned worker, else of another that the policy allows."""
        tried: set[str] = set()
        while True:
            worker = self.execution.pool[self.step.worker]
            tried.add(worker.name)
            try:
                completion = await self._ask(worker, prompt, tried)
            except ConductorError as error:
                self.errors.append(f"{worker.name}: {error}")
                out_of_time = isinstance(error, LimitError) and error.limit == "seconds"
                if out_of_time or self.execution.said or not await self._replace(tried):
                    return None
            else:
                return completion.message

    async def _replace(self, tried: Collection[str]) -> bool:
        step = await self._another(tried)
        if step is not None:
            self.step = step
        return step is not None

    async def _another(self, tried: Collection[str]) -> Step | None:
        """The step in the hands of the best other worker that may have it."""
        run = self.execution
        names = [name for name in run.space.choices if name not in tried]
        for name in sorted(names, key=lambda name: -run.pool[name].card.mean_accuracy):
            step = self.step.model_copy(update={"worker": name})
            if await run.permits(self.index, step):
                return step
        return None

    async def _ask(self, worker: Worker, prompt: str, tried: set[str]) -> Completion:
        if worker.hedge_after is None or self._streams:
            return await self._ask_one(worker, prompt)
        first = asyncio.create_task(self._ask_one(worker, prompt))
        asked = {first: self.step}
        try:
            await asyncio.wait({first}, timeout=worker.hedge_after)
            if not first.done():
                await self._hedge(asked, prompt, tried)
            return await self._soonest(asked)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _hedge(self, asked: dict[asyncio.Task[Completion], Step], prompt: str, tried: set[str]) -> None:
        other = await self._another(tried)
        late = any(task.done() for task in asked)  # whoever may help could be told only once the plan was whole
        if other is not None and not late and self.execution.hedges.left > 0:
            self.execution.hedges.left -= 1
            tried.add(other.worker)
            asked[asyncio.create_task(self._ask_one(self.execution.pool[other.worker], prompt))] = other

    async def _soonest(self, asked: dict[asyncio.Task[Completion], Step]) -> Completion:
        """The first good reply of the tasks; the first error when all fail."""
        waiting, failed = set(asked), []
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in (task for task in asked if task in done):
                error = task.exception()
                if error is not None:
                    failed.append(error)
                else:  # still permitted: what it reads is done, and nothing that reads it has begun
                    self.step = asked[task]
                    return task.result()
        raise failed[0]

    async def _ask_one(self, worker: Worker, prompt: str) -> Completion:
        run = self.execution

        def started(attempt: int) -> None:
            run.emit(StepStarted(round=run.number, index=self.index, worker=worker.name, attempt=attempt))

        return await run.caller.ask(
            worker.model,
            self._request(prompt, worker),
            calls=self.calls,
            worker=worker.name,
            slot=worker.slots.get() if worker.slots else None,
            on_attempt=started,
            on_text=self._say if self._streams else None,
            reasoning=worker.reasoning,
        )

    def _say(self, text: str) -> None:
        self.execution.said += text
        self.execution.emit(AnswerDelta(text=text))

    @property
    def _streams(self) -> bool:
        return self.execution.stream and self.last


def _evidence(label: str, result: StepResult) -> Evidence:
    reply = result.text if result.status == "ok" else NO_REPLY
    return Evidence(label=label, subtask=result.step.subtask, reply=reply)


def _over(defaults: Sampling, asked: Sampling) -> Sampling:
    """`defaults` with whatever was asked for put in its place."""
    given = {name: value for name in asked.model_fields_set if (value := getattr(asked, name)) is not None}
    return defaults.model_copy(update=given)
