"""Runs one step: builds its prompt, calls its worker, hedges a slow call, and replaces a worker that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rl_conductor._internal.formatting import join_reasons, with_worker_name
from rl_conductor.calls.model_call import ModelCall
from rl_conductor.errors import ConductorError, GuardrailError, LimitError, OutputLimitError
from rl_conductor.execution.continuation import digest_subject
from rl_conductor.execution.guarding import CallGuard
from rl_conductor.execution.round_context import RoundContext
from rl_conductor.guardrails.runner import GuardrailRunner
from rl_conductor.pool.worker import Worker
from rl_conductor.prompting.request_inputs import select_inputs, select_question
from rl_conductor.prompting.subtasks import ANSWER
from rl_conductor.prompting.worker_prompt import (
    Evidence,
    hide_attachments,
    prompt_after_replies,
    with_prompt,
    worker_prompt,
)
from rl_conductor.trace.checks import ENDS_RUN, GuardrailCheck
from rl_conductor.trace.events import AnswerDelta, ReasoningDelta, StepFinished, StepStarted
from rl_conductor.trace.outcomes import CANCELLED
from rl_conductor.trace.trace import Call, StepResult
from rl_conductor.types import Completion, Continuation, Message, Request, Sampling, prompt_in
from rl_conductor.workflow.request_tokens import raised_max_tokens
from rl_conductor.workflow.workflow import Step


@dataclass(slots=True)
class StepRun:
    """The run of one step: its calls and errors so far, and its result."""

    round: RoundContext
    index: int
    planned: Step
    last: bool = False
    """Whether it is the step that answers."""
    calls: list[Call] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    result: StepResult | None = None
    checks: list[GuardrailCheck] = field(default_factory=list)
    evidence: tuple[Evidence, ...] = ()
    """The earlier replies that are in its prompt."""
    redacted_prompts: dict[str, str] = field(default_factory=dict)
    """By worker: the prompt as sent, if guardrails check it."""
    max_tokens: dict[str, int] = field(default_factory=dict)
    """The raised `max_tokens` of workers that had used up their default without an answer."""

    def __post_init__(self) -> None:
        self.round.steps[self.index] = self.planned if self.result is None else self.result.step

    @property
    def step(self) -> Step:
        """The step as run: its worker is the current one."""
        return self.round.steps[self.index]

    @property
    def is_whole_task(self) -> bool:
        """Whether the step is the whole task and reads nothing.

        Its worker then gets the conversation unchanged, because small models answer fewer questions in a step's prompt.
        """
        return self.planned.subtask == ANSWER and not self.evidence

    async def run(self) -> StepResult:
        """Waits for the steps in the access list, calls a worker, and emits the result.

        Raises:
            ConductorError: an error of the worker that ends the run.
        """
        inputs = await self.round.replies(self.planned.access)
        started = self.round.run.elapsed()
        prompt = self._prompt(inputs)
        try:
            reply = await self._reply(prompt)
        except ConductorError:
            self._emit_result(None, started)
            raise
        if reply is not None and reply.tool_calls:
            reply = reply.model_copy(update={"continuation": self._continuation(prompt)})
        return self._emit_result(reply, started)

    def _continuation(self, prompt: str) -> Continuation:
        """Returns the state with which the worker goes on after its tool calls, when the caller has their results."""
        continued, worker = self.round.continued, self.step.worker
        if continued is not None:  # the prompt is the same, and so is what it contains
            prompt_as_sent, sources, subject = continued.prompt, continued.sources, continued.subject
        else:
            prompt_as_sent = None if self.is_whole_task else prompt
            sources, subject = self.round.sources(self.index), digest_subject(self.round.request)
        return Continuation(
            worker=worker,
            prompt=self.redacted_prompts.get(worker, prompt_as_sent),
            sources=sources,
            inputs=self.planned.inputs,
            subject=subject,
        )

    def _emit_result(self, reply: Message | None, started: float) -> StepResult:
        run = self.round.run
        result = self.result = self._to_result(
            join_reasons(self.errors) or None,
            status="failed" if reply is None else "ok",
            reply=reply,
            started=started,
            seconds=run.elapsed() - started,
        )
        if run.has_listener:
            run.emit(StepFinished(round=self.round.number, result=result))
        return result

    def interrupted(self) -> StepResult:
        """Returns the result of a step that was cancelled."""
        return self._to_result(CANCELLED, status="failed")

    def _to_result(self, error: str | None, **fields: Any) -> StepResult:
        fields |= {
            "index": self.index,
            "step": self.step,
            "planned_worker": self.planned.worker,
            "error": error,
            "calls": tuple(self.calls),
            "checks": tuple(self.checks),
        }
        return StepResult(**fields) if error else StepResult.unchecked(**fields)

    # ------------------------------------------------------------------------------- the request

    def _prompt(self, inputs: Sequence[StepResult]) -> str:
        evidence = self._earlier_rounds() + [Evidence.of(str(result.index + 1), result) for result in inputs]
        self.evidence = tuple(evidence)
        if self.is_whole_task:
            return self.round.question
        names = self.planned.inputs
        question = self.round.question if names is None else select_question(self.round.request.messages, names)
        return worker_prompt(question, evidence, self.planned.subtask, key=self.round.run.delimiter_key)

    def _earlier_rounds(self) -> list[Evidence]:
        if not self.planned.recall:
            return []
        return [
            Evidence.of(f"{result.index + 1} of round {number + 1}", result)
            for number, round_ in enumerate(self.round.previous_rounds)
            for result in round_.results
            if result.status != "skipped"
        ]

    def _request(self, prompt: str, worker: Worker, request: Request | None = None) -> Request:
        request, can = request or self.round.request, worker.model.capabilities
        messages = request.messages if self.is_whole_task else with_prompt(request.messages, prompt)
        messages = select_inputs(messages, self.planned.inputs)
        if self._has_subtask:
            messages = prompt_after_replies(messages, prompt)
        messages = hide_attachments(messages, images=can.images, files=can.files)
        if worker.instructions:
            messages = _with_instructions(messages, worker.instructions)
        defaults = worker.sampling
        if worker.name in self.max_tokens:
            defaults = defaults.model_copy(update={"max_tokens": self.max_tokens[worker.name]})
        if not self.last:
            return Request.unchecked(messages=messages, sampling=defaults, timeout=worker.timeout)
        timeout = request.timeout if worker.timeout is None else worker.timeout
        sampling = _override(defaults, request.sampling)
        return request.model_copy(update={"messages": messages, "sampling": sampling, "timeout": timeout})

    @property
    def _has_subtask(self) -> bool:
        """Whether the prompt is more than the caller's last message."""
        continued = self.round.continued
        return not self.is_whole_task or (continued is not None and continued.prompt is not None)

    # --------------------------------------------------------------------------------- the worker

    async def _reply(self, prompt: str) -> Message | None:
        """Returns the first successful reply, of the planned worker or of another that the policy allows.

        Raises:
            ConductorError: an error that ends the run.
        """
        tried: set[str] = set()
        while True:
            worker = self.round.pool[self.step.worker]
            tried.add(worker.name)
            try:
                if worker.hedge_after is None or self._streams:
                    completion = await self._call(worker, prompt)
                else:
                    completion = await self._hedged_call(worker, worker.hedge_after, prompt, tried)
            except ConductorError as error:
                self.errors.append(with_worker_name(error, worker=worker.name, model=worker.model.name))
                if error.ends_run:
                    raise
                if isinstance(error, GuardrailError) and error.stage in ENDS_RUN:
                    return None
                if isinstance(error, OutputLimitError) and self._raise_max_tokens(worker, prompt):
                    continue
                out_of_time = isinstance(error, LimitError) and error.limit == "seconds"
                if out_of_time or self.round.streamed_pieces or not await self._replace_worker(tried):
                    return None
            else:
                return completion.message

    def _raise_max_tokens(self, worker: Worker, prompt: str) -> bool:
        """Raises `max_tokens` of the worker's next call, once; returns whether that is possible.

        It is not if the caller set the limit, or if the context has no room for more output.
        """
        is_callers = self.last and self.round.request.sampling.max_tokens is not None
        if worker.sampling.max_tokens is None or is_callers or worker.name in self.max_tokens:
            return False
        raised = raised_max_tokens(self._request(prompt, worker), worker.model.capabilities.context)
        if raised is None or self.round.streamed_pieces:
            return False
        self.max_tokens[worker.name] = raised
        return True

    async def _replace_worker(self, tried: Collection[str]) -> bool:
        step = await self._fallback_step(tried)
        if step is not None:
            self.round.steps[self.index] = step
        return step is not None

    async def _fallback_step(self, tried: Collection[str]) -> Step | None:
        """Assigns the step to the best other worker that the policy allows; `None` without one."""
        names = [name for name in self.round.space.choices if name not in tried]
        for name in self.round.pool.rank(names):
            step = self.step.model_copy(update={"worker": name})
            if await self.round.permits(self.index, step):
                return step
        return None

    async def _hedged_call(self, worker: Worker, hedge_after: float, prompt: str, tried: set[str]) -> Completion:
        """Calls the worker, and another one as well if it has not replied after `hedge_after` seconds."""
        first = asyncio.create_task(self._call(worker, prompt))
        steps = {first: self.step}
        try:
            await asyncio.wait({first}, timeout=hedge_after)
            if self.round.hedges.remaining > 0 and await self._outlasts_planning(first):
                await self._hedge(steps, prompt, tried)
            return await self._first_success(steps)
        finally:
            for task in steps:
                task.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    async def _outlasts_planning(self, call: asyncio.Task[Completion]) -> bool:
        """Waits for the plan, without which no other worker can be chosen, or for `call`, if that ends first."""
        plan = asyncio.ensure_future(self.round.planned.wait())
        try:
            await asyncio.wait({call, plan}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            plan.cancel()
        return not call.done()

    async def _hedge(self, steps: dict[asyncio.Task[Completion], Step], prompt: str, tried: set[str]) -> None:
        other = await self._fallback_step(tried)
        if other is not None and self.round.hedges.remaining > 0:  # other steps may have waited for the plan, too
            self.round.hedges.remaining -= 1
            tried.add(other.worker)
            call = self._call(self.round.pool[other.worker], prompt)
            steps[asyncio.create_task(call)] = other

    async def _first_success(self, steps: dict[asyncio.Task[Completion], Step]) -> Completion:
        """Returns the first successful reply.

        It raises an error that ends the run; if all tasks fail, that of the first one, which is the step's own worker.
        """
        waiting, errors = set(steps), dict[asyncio.Task[Completion], BaseException]()
        while waiting:
            finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in (task for task in steps if task in finished):
                error = task.exception()
                if isinstance(error, ConductorError) and error.ends_run:
                    raise error
                if error is not None:
                    errors[task] = error
                else:  # still allowed: the steps it reads have finished, and none that reads it has started
                    self.round.steps[self.index] = steps[task]
                    return task.result()
        own, *others = steps
        for task in others:
            worker = self.round.pool[steps[task].worker]
            self.errors.append(with_worker_name(errors[task], worker=worker.name, model=worker.model.name))
        raise errors[own]

    def _call(self, worker: Worker, prompt: str) -> Coroutine[Any, Any, Completion]:
        if self.round.run.all_guardrails:
            return self._guarded_call(worker)
        return self._model_call(worker, prompt).complete()

    async def _guarded_call(self, worker: Worker) -> Completion:
        """Calls a worker with the prompt that guardrails allow, and returns the reply that they allow."""
        runner = GuardrailRunner(self.round.run, self.calls, self.checks)
        guard = CallGuard(runner, worker.card, self.round.request, self.evidence, is_last=self.last)
        parts = await guard.check_prompt(self.planned.subtask)
        prompt = prompt_in(parts.request.messages)
        if not self.is_whole_task:
            question = select_question(parts.request.messages, self.planned.inputs)
            prompt = worker_prompt(question, parts.evidence, parts.subtask, key=self.round.run.delimiter_key)
        self.redacted_prompts[worker.name] = prompt
        try:
            completion = await self._model_call(worker, prompt, parts.request).complete()
        finally:
            guard.withhold_failed()
        return await guard.check_reply(completion)

    def _model_call(self, worker: Worker, prompt: str, request: Request | None = None) -> ModelCall:
        return ModelCall(
            run=self.round.run,
            model=worker.model,
            request=self._request(prompt, worker, request),
            calls=self.calls,
            worker=worker.name,
            slot=worker.slots.get() if worker.slots else None,
            on_attempt=partial(self._emit_start, worker.name) if self.round.run.has_listener else None,
            on_text=self._emit_text if self._streams else None,
            on_reasoning=self._emit_reasoning if self._streams else None,
            reasoning=worker.reasoning,
            checks_format=True,
        )

    def _emit_start(self, worker: str, attempt: int) -> None:
        access, number = self.planned.access, self.round.number
        event = StepStarted(round=number, index=self.index, worker=worker, attempt=attempt, access=access)
        self.round.run.emit(event)

    def _emit_text(self, text: str) -> None:
        self.round.streamed_pieces.append(text)
        self.round.run.emit(AnswerDelta(text=text))

    def _emit_reasoning(self, text: str) -> None:
        self.round.has_streamed_reasoning = True
        self.round.run.emit(ReasoningDelta(text=text))

    @property
    def _streams(self) -> bool:
        return self.round.stream and self.last


def _with_instructions(messages: tuple[Message, ...], instructions: str) -> tuple[Message, ...]:
    """Puts the worker's instructions first, in one system message with the caller's, as many chat templates demand."""
    if messages[0].role != "system":
        return (Message.system(instructions), *messages)
    merged = Message.system(f"{instructions}\n\n{messages[0].text}")
    return (merged.model_copy(update={"is_developer": messages[0].is_developer}), *messages[1:])


def _override(defaults: Sampling, sampling: Sampling) -> Sampling:
    """Returns `defaults`, overridden by the fields that are set in `sampling`."""
    update = {name: value for name in sampling.model_fields_set if (value := getattr(sampling, name)) is not None}
    return defaults.model_copy(update=update) if update else defaults
