"""The `Trace` of a run, and its calls, steps, plans and rounds.

A `Trace` is one frozen value that converts to JSON and back. All reports about a run (costs, the drawing in the
terminal, replay, rewards) are computed from it alone. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import not_
from typing import Literal, Self

from pydantic import Field, ValidationError

from rl_conductor.trace.checks import ENDS_RUN, GUARDRAIL_PREFIX, GuardrailCheck
from rl_conductor.trace.feedback import Feedback
from rl_conductor.trace.fingerprint import fingerprint
from rl_conductor.trace.outcomes import CANCELLED, CallOutcome
from rl_conductor.trace.routing_decision import RoutingDecision
from rl_conductor.trace.setup import Setup, Versions
from rl_conductor.types import Completion, Dollars, Message, Request, Text, Usage, Value, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Step, Workflow


class Charge(Value):
    """The amount that limits count for a call: its upper bound if it was interrupted or reports no usage.

    Such bounds of the calls nested in it are included.
    """

    usd: Dollars
    tokens: int


class Call(Value):
    """One attempt at a call to a model, successful or not."""

    model: str
    """The requested model, as `provider:name`."""
    worker: str | None = None
    """The worker that was called; `None` for the planner, `guardrail:NAME` for a call that a guardrail made."""
    request: Request | None = None
    """The request as sent; `None` when prompts are not kept."""
    fingerprint: str | None = Field(default=None, exclude_if=lambda digest: digest is None)
    """The `fingerprint` of a request that is not kept."""
    completion: Completion | None = None
    """The reply; its `model` is the one that answered. A failed call has one only if the reply lacked the format or the
    tool call that the request requires."""
    outcome: CallOutcome = "ok"
    """How the attempt ended."""
    error: Text | None = None
    """Why it failed."""
    status: int | None = None
    """The HTTP status of a failed call, if the vendor answered with one."""
    retryable: bool = False
    """Whether a retry could succeed."""
    retry_after: float | None = None
    """Seconds that the vendor asked to wait before the next call."""
    broke_off: bool = False
    """Whether a part of the reply had been streamed to the caller when the call failed, so that it was not retried."""
    out_of_tokens: bool = False
    """Whether the model used up `max_tokens` before it wrote any answer."""
    context_exceeded: bool = Field(default=False, exclude_if=not_)
    """Whether the request was longer than the model can read."""
    usage: Usage = Field(default_factory=Usage)
    """Includes everything that is `nested` in the call."""
    charged: Charge | None = Field(default=None, exclude_if=lambda charged: charged is None)
    """The charge to the limits if that is not the usage; a resumed run has to count it again."""
    started: float
    """Seconds since the run began."""
    seconds: float
    """Its duration."""
    nested: Nested | None = Field(default=None, exclude_if=lambda nested: nested is None)
    """The calls, tools and runs inside of the call, if its model is a conductor or an agent."""

    @property
    def request_fingerprint(self) -> str:
        """The `fingerprint` of the request, which is computed from the request itself where that is kept."""
        return fingerprint(self.request) if self.request is not None else self.fingerprint or ""

    @property
    def is_check(self) -> bool:
        """Whether a guardrail made the call."""
        return self.worker is not None and self.worker.startswith(GUARDRAIL_PREFIX)


class ToolUse(Value):
    """One call of a tool that belongs to a worker and was run for it."""

    name: str
    """The tool's name."""
    arguments: Text
    """The JSON text as the model wrote it."""
    result: Text
    """The text that was returned to the model."""
    is_error: bool = False
    """Whether the tool failed, so that the result is an error."""
    started: float
    """Seconds since the run began."""
    seconds: float
    """Its duration."""


class NestedRun(Value):
    """A conductor's run inside of a model call of another run. Its times count from its own beginning."""

    id: str
    """The nested run's id."""
    planner: str
    """The nested conductor's own model."""
    rounds: tuple[Round, ...]
    """The plans and the results of their steps, in order."""
    answer: Answer | None = None
    """The step that gave the answer; `None` without an answer."""
    error: Text | None = None
    """Why there is no answer."""
    started: float
    """Seconds since the outer run began."""
    seconds: float
    """Duration of the nested run."""


class Nested(Value):
    """The calls, tools and runs inside of one model call; bounded in size, without the requests of calls.

    Their usage is part of the outer call's, and must not be added to it.
    """

    calls: tuple[Call, ...] = ()
    """Calls of a base model by an agent. Their times count from the beginning of the run around the agent."""
    tools: tuple[ToolUse, ...] = ()
    """Uses of the worker's own tools."""
    runs: tuple[NestedRun, ...] = ()
    """Runs of conductors."""
    left_out: int = 0
    """Number of further calls, tools and runs that did not fit."""


class StepResult(Value):
    """The result of one step: its reply or error, and its calls."""

    index: int
    """Position of the step in the workflow, from 0."""
    step: Step
    """The step as run: its `worker` may have replaced the planned one."""
    planned_worker: str
    """The worker in the plan."""
    status: Literal["ok", "failed", "skipped"]
    """`skipped`: the answer does not depend on the step, so it never ran."""
    reply: Message | None = None
    """The reply; `None` if the step failed or never ran."""
    error: Text | None = None
    """Why the step, or a worker that was replaced, failed."""
    calls: tuple[Call, ...] = ()
    """All attempts, those of replaced workers included."""
    started: float = 0.0
    """Seconds since the run began at which the steps in its access list had finished."""
    seconds: float = 0.0
    """Seconds from then until it finished, including the wait for a free slot."""
    checks: tuple[GuardrailCheck, ...] = Field(default=(), exclude_if=not_)
    """Checks of its prompts and replies by guardrails."""

    @property
    def text(self) -> str:
        """The reply's text; empty when the step failed or never ran."""
        return self.reply.text if self.reply else ""

    @property
    def usage(self) -> Usage:
        """The usage of its calls, including failed ones."""
        return total(call.usage for call in self.calls)


PlanOrigin = Literal["planner", "given", "single", "router", "learned", "fallback", "continuation"]
"""The origin of the workflow: the planner, the caller (`given`), a policy that leaves one choice (`single`), a
classifier that rates the request as simple (`router`), a selector of learned workflows (`learned`), the fallback after
the planner failed, or a continuation of the worker's tool calls."""


class PlanRecord(Value):
    """A plan with its origin, its text as written, and the calls that produced it."""

    source: PlanOrigin
    """The origin of the workflow."""
    text: Text = ""
    """The plan as written."""
    reasoning: Text = ""
    """The planner's reasons, before the steps."""
    repairs: tuple[Text, ...] = ()
    """Descriptions of the changes to the plan as written."""
    errors: tuple[Text, ...] = ()
    """Why earlier samples were rejected, and parts of an interrupted run that the policy no longer allows."""
    workflow: Workflow | None = None
    """The plan as parsed; `None` accepts the answer of the previous round."""
    form: str | None = None
    """The form of the text: `lists`, `rows` or `object`; `None` without a text."""
    constrained: bool = False
    """Whether decoding was constrained to the grammar of the pool and policy, or a part of it if that is too large."""
    calls: tuple[Call, ...] = ()
    """The planner's calls, those for rejected plans included."""
    routing: RoutingDecision | None = None
    """The router's decision before planning; `None` without a router."""
    planning_reason: Text = Field(default="", exclude_if=not_)
    """Why no learned workflow ran, or why the trained planner left the request to the general one."""
    checks: tuple[GuardrailCheck, ...] = Field(default=(), exclude_if=not_)
    """Checks of the request by guardrails, before planning; their calls are among `calls`."""

    @property
    def is_complete(self) -> bool:
        """`True` once planning has ended, with a workflow or by accepting the answer of the previous round."""
        return self.workflow is not None or bool(self.text) or self.source == "fallback"

    @property
    def is_unplanned(self) -> bool:
        """Whether neither the planner nor the caller wrote the plan."""
        return self.source not in ("planner", "given")

    @property
    def usage(self) -> Usage:
        """The usage of its calls, those for rejected plans included."""
        return total(call.usage for call in self.calls)


class Round(Value):
    """One plan and the results of its steps."""

    plan: PlanRecord
    """The plan, and how it came about."""
    results: tuple[StepResult, ...] = ()
    """The result of each step, in the order of the plan."""

    @property
    def workflow(self) -> Workflow | None:
        """The workflow as run, with the workers that ran the steps; `None` if an interruption left no whole one."""
        try:
            return Workflow(steps=tuple(result.step for result in self.results))
        except ValidationError:
            return None

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of the round, planning first."""
        return (*self.plan.calls, *(call for result in self.results for call in result.calls))

    @property
    def checks(self) -> tuple[GuardrailCheck, ...]:
        """Every check of the round, those of the request first."""
        return (*self.plan.checks, *(check for result in self.results for check in result.checks))

    def without_usage(self) -> Self:
        """Returns the round with calls that used nothing, for a run that did not pay for them."""
        results = tuple(result.model_copy(update={"calls": _without_usage(result.calls)}) for result in self.results)
        plan = self.plan.model_copy(update={"calls": _without_usage(self.plan.calls)})
        return self.model_copy(update={"plan": plan, "results": results})


class Answer(Value):
    """The step that gave the answer."""

    source: Literal["final", "evidence", "tool_calls"]
    """The last step; the best earlier step because the last one failed; or a tool call for the caller."""
    round: int
    step: int


class Trace(Value):
    """Everything that happened in one run."""

    id: str
    """The run's id, `run-` and 16 hexadecimal digits."""
    created: datetime
    """Time at which the run began."""
    request: Request
    """The caller's request."""
    policy: Policy
    """The policy of the run."""
    limits: Limits
    """The limits of the run."""
    planner: str
    """The planner's model, as `provider:name`."""
    rounds: tuple[Round, ...] = ()
    """The plans and the results of their steps, in order."""
    answer: Answer | None = None
    """The step that gave the answer; `None` without an answer."""
    completion: Completion | None = None
    """The answer, with the usage of the whole run; `None` without an answer."""
    error: Text | None = None
    """Why there is no answer."""
    seconds: float = 0.0
    """Duration of the run."""
    delimiter_key: str
    """The key of the delimiters in prompts; a replay needs it to make the same requests."""
    versions: Versions
    """Versions of the package and of the prompts."""
    setup: Setup | None = None
    """`None` in a trace that no run produced, which can't be replayed."""
    feedback: tuple[Feedback, ...] = Field(default=(), exclude_if=not_)
    """Ratings of the answer, in traces that a server exported."""

    @property
    def text(self) -> str:
        """The answer's text; empty when there is no answer."""
        return self.completion.text if self.completion else ""

    @property
    def rejected(self) -> Completion | None:
        """The last reply, with the usage of the whole run, if it was rejected and so there is no answer.

        It lacks the format, or the tool call, that the request requires.
        """
        last = self.calls[-1] if self.calls else None
        if self.completion is not None or last is None or last.completion is None or last.outcome != "error":
            return None
        return last.completion.model_copy(update={"usage": self.usage})

    @property
    def was_cancelled(self) -> bool:
        """Whether the run has no answer because somebody cancelled it."""
        return self.completion is None and self.error == CANCELLED

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of the run."""
        return tuple([call for round_ in self.rounds for call in round_.calls])

    @property
    def answer_calls(self) -> tuple[Call, ...]:
        """The calls to workers for the answer: those of the newest last step, or of all steps if it made none."""
        last = self.rounds[-1].results[-1:] if self.rounds else ()
        calls = [call for result in last for call in result.calls] or self.calls
        return tuple([call for call in calls if call.worker is not None and not call.is_check])

    @property
    def usage(self) -> Usage:
        """The usage of the whole run, including planning and failed calls."""
        return total(call.usage for call in self.calls)

    @property
    def planning(self) -> Usage:
        """The usage of the planner's calls."""
        return total(call.usage for call in self.calls if call.worker is None)

    @property
    def usage_by_worker(self) -> dict[str, Usage]:
        """The usage of each worker by name, in the order of their first calls."""
        usages: dict[str, Usage] = {}
        for call in self.calls:
            if call.worker is not None:
                usages[call.worker] = usages.get(call.worker, Usage()) + call.usage
        return usages

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The result of every step of every round."""
        return tuple([result for round_ in self.rounds for result in round_.results])

    @property
    def checks(self) -> tuple[GuardrailCheck, ...]:
        """The checks of all guardrails, in the order of rounds and steps."""
        return tuple([check for round_ in self.rounds for check in round_.checks])

    @property
    def refusal(self) -> GuardrailCheck | None:
        """The check that refused the request or the answer; `None` if there was none."""
        refused = (check for check in self.checks if check.outcome == "refused" and check.stage in ENDS_RUN)
        return next(refused, None)

    @property
    def used_fallback(self) -> bool:
        """Whether a single worker answered because no valid plan came in time, or a limit refused the planner."""
        return any(finished.plan.source == "fallback" for finished in self.rounds)

    @property
    def critical_path(self) -> float:
        """Seconds of planning plus the longest path of steps, summed over all rounds."""
        return self._path_seconds(lambda call: call.seconds, lambda result: result.seconds)

    @property
    def latency(self) -> float:
        """Seconds of the calls on that path; cached replies count with the time of the original call."""
        return self._path_seconds(_uncached_seconds, lambda result: sum(map(_uncached_seconds, result.calls)))

    def _path_seconds(self, planning: Callable[[Call], float], step: Callable[[StepResult], float]) -> float:
        planned = sum(planning(call) for each in self.rounds for call in each.plan.calls if call.worker is None)
        rounds = ((each.workflow, each.results) for each in self.rounds)
        return planned + sum(plan.critical_path(tuple(map(step, results))) for plan, results in rounds if plan)


def _without_usage(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(call.model_copy(update={"usage": Usage()}) for call in calls)


def _uncached_seconds(call: Call) -> float:
    return call.seconds + call.usage.cached_seconds
