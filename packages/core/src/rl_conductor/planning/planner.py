"""Makes a model write a plan: the prompt, the grammar, samples until one may run. Knows nothing of running plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from rl_conductor.calls.model_call import Caller
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
from rl_conductor.planning.prompts import Rejection, Review, planner_messages, rejection_messages
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.events import Listener, PlanDelta, PlanRejected, PlanStarted
from rl_conductor.trace.trace import Call, PlannerSetup, PlanRecord
from rl_conductor.types import Card, Completion, Message, Request, ResponseFormat, Roster, Sampling
from rl_conductor.workflow.limits import PLAN_TOKENS
from rl_conductor.workflow.workflow import PlanSpace, Step

PLANNING_SHARE = 0.5
"""Share of the time left that planning a round may take, all samples together: the rest is for the answer, be it that
of a single worker."""
RESAMPLED = 0.7
"""Temperature of further samples of a greedy planner, which would write the same plan again."""


def _ignore_step(_: Step) -> None:
    pass


async def _abandon_nothing() -> tuple[Call, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What one planning needs of the run around it."""

    conversation: Sequence[Message]
    space: PlanSpace
    cards: Sequence[Card]
    caller: Caller
    fence_key: str
    emit: Listener
    number: int = 0
    """Which round, from 0."""
    reviews: Sequence[Review] = ()
    """The rounds before, with their answers."""
    calls: list[Call] = field(default_factory=list)
    """Filled with every call made, so that they are known even when planning is cut short."""
    errors: list[str] = field(default_factory=list)
    """Filled with why plans were rejected."""
    first_step: Callable[[Step], None] = _ignore_step
    """Told the first step while the second is being written (`lines` form only)."""
    rejected: Callable[[], Awaitable[tuple[Call, ...]]] = _abandon_nothing
    """Called when a sample is rejected; returns the calls that were made on its account."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """A model, and the manner in which it is asked for plans."""

    model: Model
    form: Form | None = None
    """How plans are spelled; `None` takes what the model can be held to: `lists` with a grammar or with
    nothing, `object` with a JSON schema."""
    roster: Roster = "cards"
    examples: int = 3
    """Worked examples in the prompt, at most 4."""
    samples: int = 5
    """Most samples before planning is given up (supplement: 5). Each one after the first is shown the last plan that
    was rejected, and why."""
    repair: bool = True
    """Whether what is wrong with a plan is repaired where that is possible, or costs a sample. One with too many steps
    is asked for again first."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=PLAN_TOKENS))
    timeout: float | None = 120.0
    """Seconds a sample may take."""
    card: Card = field(default_factory=lambda: Card(name="planner"))
    """What data rules are held against: the planner reads the user's conversation too."""

    @classmethod
    def like(cls, worker: Worker) -> Self:
        """A worker's model, which the same data may reach."""
        return cls(model=worker.model, card=Card(name="planner", tags=worker.card.tags, region=worker.card.region))

    @classmethod
    def of(cls, entry: PlannerEntry) -> Self:
        """The planner that a pool file describes.

        Raises:
            ConfigError: there is no such model, or its options don't fit.
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
        """What a trace says of it."""
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

    async def plan(self, draft: Drafting) -> PlanRecord:
        """A plan that may run. Its `source` is `fallback`, and its workflow `None`, when no sample was one."""
        try:
            form, held_to = self.spelling(draft.space)
        except ConfigError as error:
            return PlanRecord(source="fallback", errors=(str(error),))
        messages = planner_messages(
            draft.conversation,
            draft.space,
            draft.cards,
            key=draft.fence_key,
            form=form,
            roster=self.roster,
            examples=self.examples,
            reviews=draft.reviews,
        )
        draft.emit(PlanStarted(round=draft.number))
        return await _Sampler(self, draft, form, held_to, messages).plan()

    @property
    def spells(self) -> Form:
        """The form of the plans."""
        can = self.model.capabilities
        return self.form or ("lists" if can.grammar or not can.json_schema else "object")

    def spelling(self, space: PlanSpace) -> tuple[Form, ResponseFormat | None]:
        """The form of the plan, and what decoding is held to; `None` when the model can't be held to it.

        Raises:
            ConfigError: no plan at all is possible.
        """
        can, form = self.model.capabilities, self.spells
        able = can.json_schema if form == "object" else can.grammar
        try:
            if not able:
                return form, None
            return form, constraint(space, form, counted=can.lengths == "grammar", array_bounds=can.array_bounds)
        except GrammarTooLarge:  # the parser and the space still catch what could not be ruled out beforehand
            return form, None

    def request(self, messages: Sequence[Message], response_format: ResponseFormat | None, sample: int) -> Request:
        """The request for a sample, counted from 0."""
        changed: dict[str, float] = {}
        if self.sampling.seed is not None:
            changed["seed"] = self.sampling.seed + sample
        if sample and self.sampling.temperature == 0:
            changed["temperature"] = RESAMPLED
        sampling = self.sampling.model_copy(update=changed)
        return Request(
            messages=tuple(messages), response_format=response_format, sampling=sampling, timeout=self.timeout
        )


@dataclass
class _Sampler:
    """Asks for plans until one may run, each time with what was wrong with the one before."""

    planner: Planner
    draft: Drafting
    form: Form
    response_format: ResponseFormat | None
    prompt: Sequence[Message]
    rejection: Rejection | None = None
    """The last plan that was rejected, and why."""
    shortened: PlanRecord | None = None
    """The last plan that was rejected only for something that a repair can put right, repaired."""
    deadline: float | None = None
    """When planning is given up, in seconds since the run began; `None` without a limit."""

    async def plan(self) -> PlanRecord:
        """The first plan that may run; else one that was shortened; else a record that leaves it to the fallback."""
        draft = self.draft
        self.deadline = draft.caller.deadline_after(PLANNING_SHARE)
        for sample in range(self.planner.samples):
            watch = _Watch(draft, self.form)
            try:
                return await self._sample(sample, watch)
            except ConductorError as error:
                draft.errors.append(str(error))
                draft.calls.extend(await draft.rejected())
                draft.emit(PlanRejected(round=draft.number, error=str(error)))
                if not self._may_ask_again(error, watch):
                    break
        record = self.shortened or PlanRecord(source="fallback", form=self.form)
        return record.model_copy(update={"errors": tuple(draft.errors), "calls": tuple(draft.calls)})

    async def _sample(self, sample: int, watch: _Watch) -> PlanRecord:
        messages = self.prompt
        if self.rejection is not None:
            messages = (*messages, *rejection_messages(self.rejection, key=self.draft.fence_key))
        request = self.planner.request(messages, self.response_format, sample)
        completion = await self.draft.caller.ask(
            self.planner.model,
            request,
            calls=self.draft.calls,
            on_text=watch.read,
            raw_text=True,
            deadline=self.deadline,
        )
        try:
            return self._read(completion, shorten=self.shortened is not None)
        except WorkflowError:
            with suppress(WorkflowError):
                self.shortened = self._read(completion, shorten=True)
            raise

    def _read(self, completion: Completion, *, shorten: bool) -> PlanRecord:
        text, space = completion.text, self.draft.space
        plan = parse(text, space, form=self.form, repair=self.planner.repair, shorten=shorten)
        if completion.finish_reason == "length" and _breaks_off(plan):
            most = self.planner.sampling.max_tokens
            raise WorkflowParseError(f"the plan was cut off at {most} tokens; write a shorter one", text=text)
        return PlanRecord(
            source="planner",
            text=text,
            reasoning=plan.reasoning,
            repairs=plan.repairs,
            errors=tuple(self.draft.errors),
            workflow=plan.workflow,
            form=plan.form,
            constrained=self.response_format is not None,
            calls=tuple(self.draft.calls),
        )

    def _may_ask_again(self, error: ConductorError, watch: _Watch) -> bool:
        """Another sample helps against a bad plan and one that broke off; what never began was retried already."""
        if isinstance(error, WorkflowError):
            self.rejection = Rejection(error.text, str(error))
            return True
        if isinstance(error, ContextLengthError) and self.rejection is not None:
            self.rejection = None  # without it the request fits: the first one did
            return True
        return isinstance(error, ModelError) and error.retryable and bool(watch.text)


def _breaks_off(plan: Plan) -> bool:
    """Whether a text that ended at the limit of tokens may have ended inside its plan, before its last step."""
    return plan.form == "lines" or not {CLOSED, UNENDED}.isdisjoint(plan.repairs)


@dataclass
class _Watch:
    """Reads a plan while it is written, and reports its first step once that is known not to be the last."""

    draft: Drafting
    form: Form
    text: str = ""
    told: bool = False

    def read(self, piece: str) -> None:
        """Read the next piece."""
        self.draft.emit(PlanDelta(round=self.draft.number, text=piece))
        self.text += piece
        if self.form == "lines" and not self.told and self.text.rpartition("\n")[2].startswith("{"):
            steps = completed_steps(self.text, self.draft.space)
            if steps:
                self.told = True
                self.draft.first_step(steps[0])
