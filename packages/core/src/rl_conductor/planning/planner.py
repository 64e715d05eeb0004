"""`Planner`: a model that writes plans, and the settings of its prompt, its grammar and its samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Self

from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor.errors import ConfigError
from rl_conductor.models import model
from rl_conductor.models.base import Model
from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.grammar import GrammarTooLarge, constraint, relaxed_constraint
from rl_conductor.planning.card_ranking import offered_space
from rl_conductor.planning.plan_sampler import PlanSampler
from rl_conductor.planning.plan_stream import PlanRequest, PlanStream
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import PLAN_TIMEOUT, PlannerEntry
from rl_conductor.pool.worker import Worker, why_not_a_model
from rl_conductor.prompting.planner_prompt import PromptSettings, planner_messages
from rl_conductor.trace.events import PlanRejected, PlanStarted
from rl_conductor.trace.setup import PlannerSetup
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.types import Card, Message, Request, ResponseFormat, Roster, Sampling, Wording
from rl_conductor.workflow.example import PlanExample
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.request_tokens import PLAN_TOKENS

log = logging.getLogger("rl_conductor")

RESAMPLING_TEMPERATURE = 0.7
"""Temperature of every sample after the first of a greedy planner, which would repeat the same plan otherwise."""

PLANNERS = "a Planner, a model or 'provider:model'"
"""The accepted kinds of planners, for error messages."""

RECORDED_SETTINGS = ("card", "form", "roster", "wording", "examples", "instructions", "samples", "repair", "sampling")
"""The fields of a `Planner` that traces store as they are, because a replay needs them."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """A model and the settings with which it is prompted for plans."""

    model: Model
    """The model that writes the plans."""
    form: Form | None = None
    """Output format of plans. `None` selects it by the model's capabilities: `rows` for one whose decoding a grammar
    constrains, `object` for one that supports JSON schemas only, otherwise `lists`. With the full wording, `lists`
    replace `rows`: models in this process gain nothing from steps that start early, and trained planners need the form
    of their training."""
    roster: Roster = "cards"
    """How the prompt names the workers: `cards` with names, `anonymous` without them, `ordinals` as numbers only."""
    wording: Wording | None = None
    """Wording of the prompt. `None` selects it by the model: `full` for one in this process, which is small, otherwise
    `brief`. Other rosters than `cards` have the full one only."""
    examples: int | Sequence[PlanExample] = 3
    """Number of built-in worked examples in the prompt, at most 4; or your own examples instead, of which the prompt
    contains the four whose questions are most similar to the request."""
    instructions: str = ""
    """Your own instructions for plans, such as when to check a result or which worker to prefer."""
    samples: int = 5
    """Maximum number of samples (supplement: 5). Every sample after the first sees the last rejected plan and the
    reason for its rejection."""
    repair: bool = True
    """Whether invalid plans are repaired where possible instead of resampled. A plan with too many steps is resampled
    before it is shortened."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=PLAN_TOKENS))
    """Sampling parameters of the plan."""
    timeout: float | None = PLAN_TIMEOUT
    """Seconds for one sample."""
    card: Card = field(default_factory=lambda: Card(name="planner"))
    """Checked against the policy's data rules, because the planner reads the user's conversation, too."""
    domain: Domain | None = None
    """Recognises the requests that a trained planner was trained for; `general` plans the others."""
    general: Planner | None = None
    """The planner of requests outside of `domain`."""

    def __post_init__(self) -> None:
        if (self.domain is None) != (self.general is None):
            missing = "general" if self.general is None else "domain"
            raise ConfigError(f"a planner has both a domain and a general planner, or neither: {missing} is missing")

    @classmethod
    def of(cls, planner: Self | Model | str) -> Self:
        """Returns `planner`, or a planner with the default settings for a model or its `provider:model` name.

        Raises:
            ConfigError: it is something else, or there is no such model.
        """
        if isinstance(planner, cls):
            return planner
        source = model(planner) if isinstance(planner, str) else planner
        if not isinstance(source, Model):
            raise ConfigError(f"the planner: {why_not_a_model(source, accepted=PLANNERS)}")
        return cls(model=source, sampling=_default_sampling(source))

    @classmethod
    def from_worker(cls, worker: Worker) -> Self:
        """Creates a planner from a worker's model, with the worker's tags and region."""
        card = Card(name="planner", tags=worker.card.tags, region=worker.card.region)
        return cls(model=worker.model, card=card, sampling=_default_sampling(worker.model))

    @classmethod
    def from_pool(cls, pool: WorkerPool) -> Self:
        """Creates a planner from the first worker that can plan, as functions and agents can't.

        Raises:
            ConfigError: no worker can.
        """
        for worker in pool.values():
            if worker.model.capabilities.plans:
                return cls.from_worker(worker)
        raise ConfigError(
            f"none of the workers can plan, as functions, agents and chains do a task instead: {', '.join(pool)}; add "
            "a language model, or write planner='provider:model', in a pool file a table [planner] with model = "
            "'provider:model'"
        )

    @classmethod
    def from_entry(cls, entry: PlannerEntry, *, model: Model | None = None) -> Self:
        """Creates the planner of a pool file's `[planner]` table, by default with the model that it names.

        Raises:
            ConfigError: the model does not exist, or its options are invalid.
        """
        return cls(
            model=model or entry.build(),
            form=entry.form,
            roster=entry.roster,
            wording=entry.wording,
            examples=entry.examples,
            instructions=entry.instructions,
            samples=entry.samples,
            sampling=Sampling(max_tokens=entry.max_tokens, temperature=entry.temperature),
            timeout=entry.timeout,
            card=Card(name="planner", tags=entry.tags, region=entry.region),
        )

    def for_request(self, request: Request) -> Planner:
        """Returns the planner of a request: this one, or `general` if the request is outside of `domain`."""
        if self.domain is None or self.general is None or self.domain.includes(request):
            return self
        return self.general.for_request(request)

    @property
    def planners(self) -> tuple[Planner, ...]:
        """All planners that may plan a request: this one, and `general`."""
        return (self, *(self.general.planners if self.general else ()))

    def with_instructions(self, instructions: str) -> Planner:
        """Returns a copy with other instructions, which also apply to `general`."""
        general = self.general and self.general.with_instructions(instructions)
        return replace(self, instructions=instructions, general=general)

    def wrap_models(self, wrap: Callable[[Model], Model]) -> Planner:
        """Returns a copy with each model replaced by `wrap(model)`."""
        return replace(self, model=wrap(self.model), general=self.general and self.general.wrap_models(wrap))

    @cached_property
    def setup(self) -> PlannerSetup:
        """The settings that are stored in traces."""
        capabilities = self.model.capabilities
        return PlannerSetup(
            can=capabilities.names,
            context=capabilities.context,
            runs_in=capabilities.runs_in,
            lengths=capabilities.lengths,
            **{name: getattr(self, name) for name in RECORDED_SETTINGS},
        )

    @classmethod
    def from_setup(cls, setup: PlannerSetup, model: Model) -> Self:
        """Creates the planner with a recorded setup; `model` has the capabilities of `setup`."""
        return cls(model=model, **{name: getattr(setup, name) for name in RECORDED_SETTINGS})

    async def stream(self, plan_request: PlanRequest) -> PlanStream:
        """Samples plans until one is valid, and yields its steps while it is being written, then its record.

        If no sample was valid, the record's `source` is `fallback` and its `workflow` is `None`. Closing
        the generator cancels the call in flight.
        """
        space = plan_request.space
        if self.prompt_wording == "brief":
            offered = offered_space(space, plan_request.cards, plan_request.conversation)
            plan_request = replace(plan_request, space=offered)
        try:
            response_format = self.response_format(plan_request.space)
        except ConfigError as error:
            yield PlanRecord(source="fallback", errors=(str(error),))
            return
        prompt = planner_messages(
            plan_request.conversation,
            space,
            plan_request.cards,
            self.prompt_settings,
            key=plan_request.run.delimiter_key,
            previous_rounds=plan_request.previous_rounds,
            offered=None if plan_request.space is space else plan_request.space,
        )
        plan_request.run.emit(PlanStarted(round=plan_request.round_index))
        sampler = PlanSampler(self, plan_request, response_format, prompt)
        async with aclosing(callback_to_async_iterator(sampler.run)) as items:
            async for item in items:
                if isinstance(item, PlanRejected):
                    plan_request.run.emit(item)
                yield item

    @cached_property
    def plan_form(self) -> Form:
        """The output format of plans: `form`, or the default for the model's capabilities."""
        can = self.model.capabilities
        if self.form or not (can.grammar or can.json_schema):
            return self.form or "lists"
        if can.grammar:
            return "rows" if self.prompt_wording == "brief" else "lists"
        return "object"

    @cached_property
    def prompt_wording(self) -> Wording:
        """The wording of the prompt: `wording`, or the default for the roster and the model."""
        if self.roster != "cards":
            return "full"
        return self.wording or ("brief" if self.model.capabilities.runs_in == "server" else "full")

    @property
    def prompt_settings(self) -> PromptSettings:
        """The settings of the prompt, with all defaults resolved for the model."""
        capabilities = self.model.capabilities
        return PromptSettings(
            form=self.plan_form,
            roster=self.roster,
            wording=self.prompt_wording,
            examples=self.examples if isinstance(self.examples, int) else tuple(self.examples),
            instructions=self.instructions,
            images=capabilities.images,
            context=capabilities.context,
        )

    def plannable(self, space: PlanSpace) -> PlanSpace:
        """Returns `space` as far as plans can express it: in `lists`, every step sees all inputs.

        So it is with other rosters than `cards`, because trained planners need the prompt of their training: they are
        not told of tools either.
        """
        is_trained = self.roster != "cards"
        inputs = () if is_trained or self.plan_form == "lists" else space.inputs
        tools = () if is_trained else space.tools
        if (inputs, tools) == (space.inputs, space.tools):
            return space
        return space.model_copy(update={"inputs": inputs, "tools": tools})

    def response_format(self, space: PlanSpace) -> ResponseFormat | None:
        """Builds the grammar or JSON schema that constrains decoding; `None` if the model supports neither.

        Logs once, at the construction of a `Conductor`, which rules are too many for a grammar: they are checked after
        plans are generated.

        Raises:
            ConfigError: `space` contains no plan.
        """
        can, form = self.model.capabilities, self.plan_form
        is_supported = can.json_schema if form == "object" else can.grammar
        if not is_supported:
            return None
        counted = can.lengths == "grammar"
        try:
            return constraint(space, form, counted=counted, array_bounds=can.array_bounds)
        except GrammarTooLarge:
            grammar, unconstrained = relaxed_constraint(space, form, counted=counted)
            _log_unconstrained(self.model.name, unconstrained)
            return grammar

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


def _default_sampling(model: Model) -> Sampling:
    """Returns a sampling with room for a plan after the thinking that the model is set to."""
    return Sampling(max_tokens=PLAN_TOKENS + model.capabilities.thinking_tokens)


@lru_cache(maxsize=256)
def _log_unconstrained(planner: str, reason: str) -> None:
    log.warning("planner %s: %s", planner, reason)
