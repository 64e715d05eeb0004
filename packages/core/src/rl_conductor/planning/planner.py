"""Generates plans with a model: builds the prompt and the grammar, and samples until a plan is valid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from rl_conductor.calls.model_call import ModelCaller
from rl_conductor.errors import (
    ConductorError,
    ConfigError,
    ContextLengthError,
    ModelError,
    WorkflowError,
    WorkflowParseError,
)
from rl_conductor.models.base import Model
from rl_conductor.plan_text.forms import Form, Plan
from rl_conductor.plan_text.grammar import GrammarTooLarge, constraint
from rl_conductor.plan_text.lenient_json import CLOSED, UNENDED
from rl_conductor.plan_text.parser import completed_steps, parse
from rl_conductor.planning.prompts import PreviousRound, Rejection, planner_messages, rejection_messages
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.events import Listener, PlanDelta, PlanRejected, PlanStarted
from rl_conductor.trace.trace import Call, PlannerSetup, PlanRecord
from rl_conductor.types import Card, Completion, Message, Request, ResponseFormat, Roster, Sampling
from rl_conductor.workflow.limits import PLAN_TOKENS
from rl_conductor.workflow.workflow import PlanSpace, Step

PLANNING_SHARE = 0.5
"""Share of the remaining time that planning a round may take, all samples together; the rest is for the steps."""
RESAMPLING_TEMPERATURE = 0.7
"""Temperature of every sample after the first of a greedy planner, which would repeat the same plan otherwise."""


def _ignore_step(_: Step) -> None:
    pass


async def _no_calls() -> tuple[Call, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The input of `Planner.plan`: the conversation, the plan space, and the run's caller and callbacks."""

    conversation: Sequence[Message]
    space: PlanSpace
    cards: Sequence[Card]
    caller: ModelCaller
    fence_key: str
    emit: Listener
    round_index: int = 0
    """Index of the round, from 0."""
    previous_rounds: Sequence[PreviousRound] = ()
    """Plans and answers of the previous rounds, oldest first."""
    calls: list[Call] = field(default_factory=list)
    """Output: every model call, appended as it is made, so that none is lost when planning is cancelled."""
    errors: list[str] = field(default_factory=list)
    """Output: why each rejected plan was rejected."""
    on_first_step: Callable[[Step], None] = _ignore_step
    """Called with the first step while the second is still being generated (`lines` form only)."""
    on_rejected: Callable[[], Awaitable[tuple[Call, ...]]] = _no_calls
    """Called when a sample is rejected; returns the calls already made for steps of that sample."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """A model and the settings with which it is prompted for plans."""

    model: Model
    form: Form | None = None
    """Output format of plans. `None` selects it by the model's capabilities: `object` for a model that supports JSON
    schemas but no grammars, otherwise `lists`."""
    roster: Roster = "cards"
    examples: int = 3
    """Number of worked examples in the prompt, at most 4."""
    samples: int = 5
    """Maximum number of samples (supplement: 5). Every sample after the first sees the last rejected plan and the
    reason for its rejection."""
    repair: bool = True
    """Whether invalid plans are repaired where possible instead of resampled. A plan with too many steps is resampled
    before it is shortened."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=PLAN_TOKENS))
    timeout: float | None = 120.0
    """Seconds for one sample."""
    card: Card = field(default_factory=lambda: Card(name="planner"))
    """Checked against the policy's data rules, because the planner reads the user's conversation, too."""

    @classmethod
    def from_worker(cls, worker: Worker) -> Self:
        """Creates a planner from a worker's model, with the worker's tags and region."""
        return cls(model=worker.model, card=Card(name="planner", tags=worker.card.tags, region=worker.card.region))

    @classmethod
    def from_entry(cls, entry: PlannerEntry) -> Self:
        """Creates the planner of a pool file's `[planner]` table.

        Raises:
            ConfigError: the model does not exist, or its options are invalid.
        """
        return cls(
            model=entry.build(),
            form=entry.form,
            roster=entry.roster,
            examples=entry.examples,
            samples=entry.samples,
            sampling=Sampling(max_tokens=entry.max_tokens, temperature=entry.temperature),
            card=Card(name="planner", tags=entry.tags, region=entry.region),
        )

    @cached_property
    def setup(self) -> PlannerSetup:
        """The settings that are stored in traces."""
        return PlannerSetup(
            card=self.card,
            can=self.model.capabilities.names,
            form=self.form,
            roster=self.roster,
            examples=self.examples,
            samples=self.samples,
            repair=self.repair,
            sampling=self.sampling,
        )

    async def plan(self, plan_request: PlanRequest) -> PlanRecord:
        """Samples plans until one is valid.

        If no sample was valid, the record's `source` is `fallback` and its `workflow` is `None`.
        """
        try:
            response_format = self.response_format(plan_request.space)
        except ConfigError as error:
            return PlanRecord(source="fallback", errors=(str(error),))
        messages = planner_messages(
            plan_request.conversation,
            plan_request.space,
            plan_request.cards,
            key=plan_request.fence_key,
            form=self.plan_form,
            roster=self.roster,
            examples=self.examples,
            previous_rounds=plan_request.previous_rounds,
        )
        plan_request.emit(PlanStarted(round=plan_request.round_index))
        return await _Sampler(self, plan_request, self.plan_form, response_format, messages).plan()

    @property
    def plan_form(self) -> Form:
        """The output format of plans: `form`, or the default for the model's capabilities."""
        can = self.model.capabilities
        return self.form or ("lists" if can.grammar or not can.json_schema else "object")

    def response_format(self, space: PlanSpace) -> ResponseFormat | None:
        """Builds the grammar or JSON schema that constrains decoding; `None` if the model supports neither.

        Raises:
            ConfigError: `space` contains no plan.
        """
        can, form = self.model.capabilities, self.plan_form
        is_supported = can.json_schema if form == "object" else can.grammar
        if not is_supported:
            return None
        try:
            return constraint(space, form, counted=can.lengths == "grammar", array_bounds=can.array_bounds)
        except GrammarTooLarge:  # plans are still validated after they are parsed
            return None

    def request(self, messages: Sequence[Message], response_format: ResponseFormat | None, sample: int) -> Request:
        """Builds the model request for the sample with this index, from 0."""
        changed: dict[str, float] = {}
        if self.sampling.seed is not None:
            changed["seed"] = self.sampling.seed + sample
        if sample and self.sampling.temperature == 0:
            changed["temperature"] = RESAMPLING_TEMPERATURE
        sampling = self.sampling.model_copy(update=changed)
        return Request(
            messages=tuple(messages), response_format=response_format, sampling=sampling, timeout=self.timeout
        )


@dataclass
class _Sampler:
    """Samples plans until one is valid, feeding each rejection back to the model."""

    planner: Planner
    plan_request: PlanRequest
    form: Form
    response_format: ResponseFormat | None
    prompt: Sequence[Message]
    rejection: Rejection | None = None
    """The last rejected plan and the reason."""
    shortened: PlanRecord | None = None
    """The last rejected plan that became valid when it was shortened, in its shortened form."""
    deadline: float | None = None
    """Deadline of planning, in seconds since the start of the run; `None` without a limit."""

    async def plan(self) -> PlanRecord:
        """Returns the first valid plan, else a shortened one, else a `fallback` record without a workflow."""
        plan_request = self.plan_request
        self.deadline = plan_request.caller.deadline_after(PLANNING_SHARE)
        for sample in range(self.planner.samples):
            watcher = PlanStreamWatcher(plan_request, self.form)
            try:
                return await self._sample(sample, watcher)
            except ConductorError as error:
                plan_request.errors.append(str(error))
                plan_request.calls.extend(await plan_request.on_rejected())
                plan_request.emit(PlanRejected(round=plan_request.round_index, error=str(error)))
                if not self._should_resample(error, watcher):
                    break
        record = self.shortened or PlanRecord(source="fallback", form=self.form)
        return record.model_copy(update={"errors": tuple(plan_request.errors), "calls": tuple(plan_request.calls)})

    async def _sample(self, sample: int, watcher: PlanStreamWatcher) -> PlanRecord:
        messages = self.prompt
        if self.rejection is not None:
            messages = (*messages, *rejection_messages(self.rejection, key=self.plan_request.fence_key))
        request = self.planner.request(messages, self.response_format, sample)
        completion = await self.plan_request.caller.complete(
            self.planner.model,
            request,
            calls=self.plan_request.calls,
            on_text=watcher.feed,
            raw_text=True,
            deadline=self.deadline,
        )
        try:
            return self._parse(completion, shorten=self.shortened is not None)
        except WorkflowError:
            with suppress(WorkflowError):
                self.shortened = self._parse(completion, shorten=True)
            raise

    def _parse(self, completion: Completion, *, shorten: bool) -> PlanRecord:
        text, space = completion.text, self.plan_request.space
        plan = parse(text, space, form=self.form, repair=self.planner.repair, shorten=shorten)
        if completion.finish_reason == "length" and _may_be_truncated(plan):
            max_tokens = self.planner.sampling.max_tokens
            raise WorkflowParseError(f"the plan was cut off at {max_tokens} tokens; write a shorter one", text=text)
        return PlanRecord(
            source="planner",
            text=text,
            reasoning=plan.reasoning,
            repairs=plan.repairs,
            errors=tuple(self.plan_request.errors),
            workflow=plan.workflow,
            form=plan.form,
            constrained=self.response_format is not None,
            calls=tuple(self.plan_request.calls),
        )

    def _should_resample(self, error: ConductorError, watcher: PlanStreamWatcher) -> bool:
        """Returns whether another sample can help: after an invalid plan or an interrupted stream.

        A call that failed before its first token was already retried by the caller.
        """
        if isinstance(error, WorkflowError):
            self.rejection = Rejection(error.text, str(error))
            return True
        if isinstance(error, ContextLengthError) and self.rejection is not None:
            self.rejection = None  # without it the request fits: the first one did
            return True
        return isinstance(error, ModelError) and error.retryable and bool(watcher.text)


def _may_be_truncated(plan: Plan) -> bool:
    """Returns whether a text that reached the token limit may have ended before the last step of its plan."""
    return plan.form == "lines" or not {CLOSED, UNENDED}.isdisjoint(plan.repairs)


@dataclass
class PlanStreamWatcher:
    """Emits the deltas of a streamed plan, and reports its first step as soon as a second one begins."""

    plan_request: PlanRequest
    form: Form
    text: str = ""
    reported_first_step: bool = False

    def feed(self, delta: str) -> None:
        """Processes the next text delta."""
        self.plan_request.emit(PlanDelta(round=self.plan_request.round_index, text=delta))
        self.text += delta
        if self.form == "lines" and not self.reported_first_step and self.text.rpartition("\n")[2].startswith("{"):
            steps = completed_steps(self.text, self.plan_request.space)
            if steps:
                self.reported_first_step = True
                self.plan_request.on_first_step(steps[0])
