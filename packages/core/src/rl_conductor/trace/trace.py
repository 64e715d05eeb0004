"""The whole run as data: calls, steps, plans, rounds, and the trace itself.

A `Trace` is one frozen value with JSON both ways. Everything that is told about a run (cost reports, the
drawing in the terminal, replay, rewards) is computed from it and from nothing else. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Literal

from pydantic import Field

from rl_conductor.plan_text.forms import Form
from rl_conductor.types import Card, Completion, Message, Request, Roster, Sampling, Text, Usage, Value, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import AccessMode, Step, Workflow

CallOutcome = Literal["ok", "error", "timeout", "cancelled", "refused"]
"""How a call ended; `refused` means that a limit stopped it before it was made."""


def fingerprint(request: Request) -> str:
    """SHA-256 of a request as sent, in hex: what a worker was shown, without showing it."""
    return hashlib.sha256(request.model_dump_json(exclude={"timeout"}).encode()).hexdigest()


class Call(Value):
    """One call to one model, whatever came of it."""

    model: str
    """The model asked for, as `provider:name`."""
    worker: str | None = None
    """The worker asked; `None` for the planner."""
    fingerprint: str
    """`fingerprint` of the request."""
    request: Request | None = None
    """What the model was shown; `None` when content is not kept."""
    completion: Completion | None = None
    """The reply; its `model` is the one that really answered."""
    outcome: CallOutcome = "ok"
    error: Text | None = None
    retryable: bool = False
    broke_off: bool = False
    """Whether a part of the reply had been passed on when it failed, so that the failure was final."""
    usage: Usage = Field(default_factory=Usage)
    started: float
    """Seconds since the run began."""
    seconds: float


class StepResult(Value):
    """What became of one step."""

    index: int
    step: Step
    """The step as run: `worker` is the one that did it, which may have replaced the planned one."""
    planned_worker: str
    status: Literal["ok", "failed", "skipped"]
    """`skipped`: the answer could not depend on it, so it never ran."""
    reply: Message | None = None
    error: Text | None = None
    calls: tuple[Call, ...] = ()
    started: float = 0.0
    """Seconds from the run's beginning until every reply it reads was there."""
    seconds: float = 0.0
    """Seconds from then until it was done, waiting for a free slot included."""

    @property
    def text(self) -> str:
        """The reply's text; empty when the step failed or never ran."""
        return self.reply.text if self.reply else ""


PlanSource = Literal["planner", "given", "single", "tier", "fallback", "continuation"]
"""Who chose the workflow: the planner, the caller, a policy that leaves one choice, a classifier to which the request
looks simple, the fall-back after the planner failed, or the tool call that this turn answers."""


class TierDecision(Value):
    """What a classifier made of a request before anything was planned."""

    tier: Literal["single", "conductor"]
    """One call of one worker, or a plan."""
    worker: str
    """Whose call it would be."""
    probability: float | None
    """That this call answers right; `None` when the request goes beyond what the classifier knows."""
    threshold: float
    """The probability from which on one call is made."""
    classifier: str
    """SHA-256 of the classifier."""
    because: str = ""
    """Why it is not one call whatever the probability; empty when that alone decided."""

    @property
    def in_words(self) -> str:
        """The decision and its reason, in a sentence without an end."""
        reason = self.because
        if self.probability is not None and not reason:
            side = "from" if self.tier == "single" else "below"
            reason = f"right with probability {self.probability:.3f}, {side} {self.threshold:.3f}"
        what = f"one call of {self.worker}" if self.tier == "single" else "planned"
        return f"{what}: {reason} (tiers {self.classifier[:12]})"


class PlanRecord(Value):
    """How a workflow came about."""

    source: PlanSource
    text: Text = ""
    """The plan as written."""
    reasoning: Text = ""
    repairs: tuple[Text, ...] = ()
    """What was changed in the plan as written, in words."""
    errors: tuple[Text, ...] = ()
    """Why plans before this one were rejected, and what of an interrupted run the policy no longer allows."""
    workflow: Workflow | None = None
    """The plan as parsed; `None` accepts the answer of the round before."""
    form: str | None = None
    constrained: bool = False
    """Whether decoding was held to the grammar of the pool and policy."""
    calls: tuple[Call, ...] = ()
    tier: TierDecision | None = None
    """What a classifier decided before; `None` when none was asked."""

    @property
    def is_made(self) -> bool:
        """Whether planning came to an end, be it that the answer of the round before is accepted."""
        return self.workflow is not None or bool(self.text) or self.source == "fallback"


class Round(Value):
    """One plan and what came of its steps."""

    plan: PlanRecord
    results: tuple[StepResult, ...] = ()

    @property
    def workflow(self) -> Workflow | None:
        """The workflow as run, with the workers that did the steps."""
        return Workflow(steps=tuple(result.step for result in self.results)) if self.results else None

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of the round, planning first."""
        return (*self.plan.calls, *(call for result in self.results for call in result.calls))


class Answer(Value):
    """Where the answer came from."""

    source: Literal["final", "evidence", "tool_calls"]
    """The last step; the best earlier step because the last one failed; or a tool call for the caller."""
    round: int
    step: int


class Versions(Value):
    """What the run was made with."""

    package: str
    prompt: str
    """Fingerprint of the texts that planner and workers are told."""


class WorkerSetup(Value):
    """A worker of the pool as the run found it."""

    card: Card
    model: str
    """Its model, as `provider:name`."""
    can: frozenset[str]
    """Names of the capabilities of its model."""
    sampling: Sampling


class PlannerSetup(Value):
    """The manner in which plans were asked for."""

    card: Card
    can: frozenset[str]
    """Names of the capabilities of its model."""
    form: Form | None
    roster: Roster
    examples: int
    samples: int
    repair: bool
    sampling: Sampling


class Setup(Value):
    """What decided the calls beside the request, its policy and its limits; a replay makes equal ones from it."""

    planner: PlannerSetup
    workers: tuple[WorkerSetup, ...]
    """The whole pool, in its order."""
    access: AccessMode
    retries: int


class Trace(Value):
    """Everything that happened in one run."""

    id: str
    created: datetime
    request: Request
    """What the caller asked."""
    policy: Policy
    limits: Limits
    planner: str
    """The Conductor's own model."""
    rounds: tuple[Round, ...] = ()
    answer: Answer | None = None
    completion: Completion | None = None
    """The answer, with the usage of the whole run; `None` when there is none."""
    error: Text | None = None
    seconds: float = 0.0
    fence_key: str
    """Secret of the fences while the run lasted; a replay needs it to make equal requests."""
    versions: Versions
    setup: Setup | None = None
    """`None` in a trace that was not made by a run; it can't be replayed."""

    @property
    def text(self) -> str:
        """The answer's text; empty when there is no answer."""
        return self.completion.text if self.completion else ""

    def calls(self) -> Iterator[Call]:
        """Every call of the run."""
        for one in self.rounds:
            yield from one.calls

    @property
    def usage(self) -> Usage:
        """What the whole run used, planning and failed calls included."""
        return total(call.usage for call in self.calls())

    @property
    def planning(self) -> Usage:
        """What planning used."""
        return total(call.usage for call in self.calls() if call.worker is None)

    def usage_by_worker(self) -> dict[str, Usage]:
        """What each worker used, by worker name, in the order in which they first worked."""
        used: dict[str, Usage] = {}
        for call in self.calls():
            if call.worker is not None:
                used[call.worker] = used.get(call.worker, Usage()) + call.usage
        return used

    def results(self) -> Iterator[StepResult]:
        """Every step of every round."""
        for one in self.rounds:
            yield from one.results

    @property
    def critical_path(self) -> float:
        """Seconds that the answer had to wait: planning plus the longest chain of steps, over all rounds."""
        return self._longest(lambda call: call.seconds, lambda result: result.seconds)

    @property
    def latency(self) -> float:
        """Seconds of the calls on that path, each as long as when it was first made: a cache makes none shorter."""
        return self._longest(_first_took, lambda result: sum(map(_first_took, result.calls)))

    def _longest(self, planning: Callable[[Call], float], step: Callable[[StepResult], float]) -> float:
        length = 0.0
        for one in self.rounds:
            length += sum(planning(call) for call in one.plan.calls if call.worker is None)
            if one.workflow:
                length += one.workflow.critical_path(tuple(map(step, one.results)))
        return length


def _first_took(call: Call) -> float:
    return call.seconds + call.usage.cached_seconds
