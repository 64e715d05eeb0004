"""Applies guardrails to one run: to its request, and to the prompt and the reply of each worker's call.

Texts are replaced before anything else sees them: planner, workers, events and trace. While a check is in progress, and
after one that refused or failed, the trace contains a note in place of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from rl_conductor.calls.context import RunContext
from rl_conductor.errors import PolicyError
from rl_conductor.guardrails.base import Guardrail
from rl_conductor.guardrails.runner import GuardrailRunner, Subject
from rl_conductor.guardrails.texts import Rewrite, rewrite_call, rewrite_completion, rewrite_message, rewrite_request
from rl_conductor.prompting.worker_prompt import Evidence
from rl_conductor.trace.checks import GuardrailCheck, Stage
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult
from rl_conductor.types import Card, Completion, JsonFormat, Message, Request, prompt_in
from rl_conductor.workflow.policy import Policy

WITHHELD = "[withheld by a guardrail]"
"""Replaces texts that were refused, or not checked to the end."""


def check_guardrail_access(guardrails: Sequence[Guardrail], policy: Policy) -> None:
    """Raises `PolicyError` unless `policy` lets every guardrail's model read the request."""
    for guardrail in guardrails:
        reason = guardrail.card and policy.data_denial_reason(guardrail.card)
        if reason:
            raise PolicyError(
                f"the guardrail {guardrail.name!r} may not see this request: {reason}; use one that checks it "
                "locally, or describe its service with card=Card(tags=..., region=...)",
                rule="data_class",
            )


def checks_replies(run: RunContext) -> bool:
    """Whether a guardrail checks the replies of workers, so that they can't be streamed."""
    return any(_at(run, stage) for stage in ("reply", "answer"))


def checks_answer(run: RunContext) -> bool:
    """Whether a guardrail checks the answer."""
    return bool(_at(run, "answer"))


def missing_checks(run: RunContext, result: StepResult, *, is_last: bool) -> list[str]:
    """Lists the guardrails that have not checked the reply of a step, which may be from before they were added."""
    stages: tuple[Stage, ...] = ("reply", "answer") if is_last else ("reply",)
    needed = dict.fromkeys(guardrail.name for stage in stages for guardrail in _at(run, stage))
    passed = {check.guardrail for check in result.checks if check.stage in stages and not check.is_blocking}
    return [name for name in needed if name not in passed]


def answer_block(rounds: Sequence[Round]) -> GuardrailCheck | None:
    """Returns the check that refused the reply of the last step, or failed; `None` if there is none."""
    checks = rounds[-1].results[-1].checks if rounds and rounds[-1].results else ()
    return next((check for check in checks if check.is_blocking and check.stage == "answer"), None)


@dataclass(eq=False)
class RequestGuard:
    """Checks the request of a run. The record of the checks becomes part of the next plan, and is kept until then."""

    request: Request
    """The caller's request."""
    is_done: bool = False
    calls: list[Call] = field(default_factory=list)
    checks: list[GuardrailCheck] = field(default_factory=list)

    @property
    def withheld(self) -> Request:
        """The part of a refused or unchecked request that traces may contain."""
        return self.request.model_copy(update={"messages": (Message.user(WITHHELD),)})

    async def check(self, run: RunContext) -> Request:
        """Returns the request to use instead of the caller's.

        Raises:
            GuardrailError: a guardrail refused the request, or failed.
        """
        subject = Subject(
            stage="input",
            value=self.request,
            rewrite=rewrite_request,
            messages=self.request.messages,
            question=prompt_in(self.request.messages),
        )
        checked = await GuardrailRunner(run, self.calls, self.checks).check(_at(run, "input"), subject)
        self.is_done = True
        return checked

    @property
    def has_record(self) -> bool:
        """Whether there are checks, or calls of guardrails, that are not yet part of a plan's record."""
        return bool(self.calls or self.checks)

    def move_record(self, plan: PlanRecord) -> PlanRecord:
        """Moves the checks and the calls to the record of a plan."""
        if not self.has_record:
            return plan
        calls, checks = (*self.calls, *plan.calls), (*self.checks, *plan.checks)
        self.calls, self.checks = [], []
        return plan.model_copy(update={"calls": calls, "checks": checks})


@dataclass(frozen=True)
class PromptParts:
    """The parts of a worker's prompt."""

    request: Request
    evidence: tuple[Evidence, ...]
    subtask: str

    def rewritten(self, rewrite: Rewrite) -> PromptParts:
        """Applies `rewrite` to every text; the prompt's delimiters are added later."""
        request = rewrite_request(self.request, rewrite)
        evidence = tuple(
            earlier._replace(subtask=rewrite(earlier.subtask), reply=rewrite(earlier.reply))
            for earlier in self.evidence
        )
        return PromptParts(request, evidence, rewrite(self.subtask))


@dataclass(frozen=True)
class CallGuard:
    """Checks the prompt and the reply of one worker's call."""

    runner: GuardrailRunner
    worker: Card
    request: Request
    """The caller's request."""
    evidence: tuple[Evidence, ...]
    is_last: bool
    """Whether the reply may be the answer."""

    async def check_prompt(self, subtask: str) -> PromptParts:
        """Returns the parts of the prompt to send.

        Raises:
            GuardrailError: a guardrail refused the prompt, or failed.
        """
        parts = PromptParts(self.request, self.evidence, subtask)
        subject = Subject(
            stage="prompt",
            value=parts,
            rewrite=PromptParts.rewritten,
            messages=self.request.messages,
            question=prompt_in(self.request.messages),
            worker=self.worker,
        )
        return await self.runner.check(_at(self.runner.run, "prompt"), subject)

    def withhold_failed(self) -> None:
        """Withholds the texts of calls that failed, as they are not checked: of agents, and of rejected replies."""
        if checks_replies(self.runner.run):
            calls = self.runner.calls
            calls[:] = [call if call.outcome == "ok" else _withheld(call) for call in calls]

    async def check_reply(self, completion: Completion) -> Completion:
        """Returns the reply to use, which also takes the place of the one in the record of the call.

        Raises:
            GuardrailError: a guardrail refused the reply, or failed.
        """
        run, calls = self.runner.run, self.runner.calls
        answer = _at(run, "answer") if self.is_last else ()
        reply = tuple(each for each in _at(run, "reply") if not any(each is other for other in answer))
        if not answer and not reply:
            return completion
        index = next(index for index, call in enumerate(calls) if call.completion is completion)
        call = calls[index]
        calls[index] = _withheld(call)
        checked = completion
        stages: tuple[tuple[Stage, tuple[Guardrail, ...]], ...] = (("reply", reply), ("answer", answer))
        for stage, guardrails in stages:
            message = await self.runner.check(guardrails, self._reply(stage, checked.message, call))
            checked = _with_message(checked, message)
        call = await self._check_nested(call)
        calls[index] = call.model_copy(update={"completion": checked})
        return checked

    def _reply(self, stage: Stage, message: Message, call: Call) -> Subject[Message]:
        is_json = self.is_last and isinstance(self.request.response_format, JsonFormat)
        tools = tuple(use.result for use in call.nested.tools) if call.nested else ()
        results = tuple(turn.text for turn in self.request.messages if turn.role == "tool")
        return Subject(
            stage=stage,
            value=message,
            rewrite=partial(rewrite_message, is_json=is_json),
            question=prompt_in(self.request.messages),
            evidence=(*(earlier.reply for earlier in self.evidence), *results, *tools),
            worker=self.worker,
        )

    async def _check_nested(self, call: Call) -> Call:
        """Redacts the record of an agent's own calls and tools."""
        guardrails = [each for each in _at(self.runner.run, "reply") if each.rewrites]
        if call.nested is None or not guardrails:
            return call
        subject = Subject(stage="reply", value=call, rewrite=rewrite_call, worker=self.worker)
        return await self.runner.check(guardrails, subject)


def _at(run: RunContext, stage: Stage) -> tuple[Guardrail, ...]:
    """Returns the guardrails of a stage; those of runs around this one check prompts and replies only."""
    guardrails = run.guardrails if stage in ("input", "answer") else run.all_guardrails
    return tuple(each for each in guardrails if stage in each.stages)


def _with_message(completion: Completion, message: Message) -> Completion:
    if message is completion.message:
        return completion
    finish = completion.finish_reason
    if finish == "tool_calls" and not message.tool_calls:
        finish = "stop"
    return completion.model_copy(update={"message": message, "finish_reason": finish})


def _withheld(call: Call) -> Call:
    def withhold(_: str) -> str:
        return WITHHELD

    completion = call.completion and rewrite_completion(call.completion, withhold)
    return rewrite_call(call, withhold).model_copy(update={"completion": completion})
