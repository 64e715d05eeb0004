"""Makes a model write a plan: the prompt, the grammar, samples until one may run. Knows nothing of running plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from rl_conductor.calling import Caller
from rl_conductor.errors import ConductorError, ConfigError, ModelError, WorkflowError
from rl_conductor.events import Listener, PlanDelta, PlanRejected, PlanStarted
from rl_conductor.grammar import GrammarTooLarge, constraint
from rl_conductor.limits import PLAN_TOKENS
from rl_conductor.models.base import Model
from rl_conductor.parser import completed_steps, parse
from rl_conductor.plan import Form
from rl_conductor.pool import PlannerEntry, Worker
from rl_conductor.prompts import Review, Roster, planner_messages
from rl_conductor.trace import Call, PlannerSetup, PlanRecord
from rl_conductor.types import Card, Message, Request, ResponseFormat, Sampling
from rl_conductor.workflow import PlanSpace, Step

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
    """Filled with why samples were thrown away."""
    first_step: Callable[[Step], None] = _ignore_step
    """Told the first step while the second is being written (`lines` form only)."""
    rejected: Callable[[], Awaitable[tuple[Call, ...]]] = _abandon_nothing
    """Told that a sample is thrown away; returns the calls that were made on its account."""


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
    """Most samples before planning is given up (supplement: 5)."""
    repair: bool = True
    """Whether small mistakes of spelling are mended, or cost a sample."""
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
        calls, errors = draft.calls, draft.errors
        for sample in range(self.samples):
            request = self._request(messages, held_to, sample)
            watch = _Watch(draft, form)
            try:
                text = (
                    await draft.caller.ask(self.model, request, calls=calls, on_text=watch.read, raw_text=True)
                ).text
                plan = parse(text, draft.space, form=form, repair=self.repair)
            except ConductorError as error:
                errors.append(str(error))
                calls += await draft.rejected()
                draft.emit(PlanRejected(round=draft.number, error=str(error)))
                if not watch.may_resample(error):
                    break
            else:
                return PlanRecord(
                    source="planner",
                    text=text,
                    reasoning=plan.reasoning,
                    repairs=plan.repairs,
                    errors=tuple(errors),
                    workflow=plan.workflow,
                    form=plan.form,
                    constrained=held_to is not None,
                    calls=tuple(calls),
                )
        return PlanRecord(source="fallback", errors=tuple(errors), form=form, calls=tuple(calls))

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
            return form, constraint(space, form, counted=can.lengths == "grammar") if able else None
        except GrammarTooLarge:  # the parser and the space still catch what could not be ruled out beforehand
            return form, None

    def _request(self, messages: Sequence[Message], held_to: ResponseFormat | None, sample: int) -> Request:
        changed: dict[str, float] = {}
        if self.sampling.seed is not None:
            changed["seed"] = self.sampling.seed + sample
        if sample and self.sampling.temperature == 0:
            changed["temperature"] = RESAMPLED
        sampling = self.sampling.model_copy(update=changed)
        return Request(messages=tuple(messages), response_format=held_to, sampling=sampling, timeout=self.timeout)


@dataclass
class _Watch:
    """Reads a plan while it is written, and tells of its first step once that is known not to be the last."""

    draft: Drafting
    form: Form
    text: str = ""
    told: bool = False

    def read(self, piece: str) -> None:
        self.draft.emit(PlanDelta(round=self.draft.number, text=piece))
        self.text += piece
        if self.form == "lines" and not self.told and self.text.rpartition("\n")[2].startswith("{"):
            steps = completed_steps(self.text, self.draft.space)
            if steps:
                self.told = True
                self.draft.first_step(steps[0])

    def may_resample(self, error: ConductorError) -> bool:
        """Another sample helps against a bad plan and one that broke off; what never began was retried already."""
        broke_off = isinstance(error, ModelError) and error.retryable and bool(self.text)
        return broke_off or isinstance(error, WorkflowError)
