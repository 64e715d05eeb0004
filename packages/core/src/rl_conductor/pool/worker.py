"""`Worker`: a model with a name in the pool, a card, and settings for its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol, Self, runtime_checkable

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor.agents.tool_loop import ToolLoopModel
from rl_conductor.agents.toolset import AnyTool
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model, model
from rl_conductor.models.redaction import redacted_repr
from rl_conductor.models.replies.reasoning_reader import ReasoningMemory
from rl_conductor.pool.function_model import FunctionModel, WorkerFunction, is_worker_function
from rl_conductor.trace.setup import WorkerSetup
from rl_conductor.types import Card, Price, Sampling
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS

CALL_TIMEOUT = 300.0
"""Default timeout of a worker's calls, in seconds."""
FRAMEWORKS = {"langchain_core": "langchain-conductor", "llama_index": "llama-index-llms-conductor"}
"""The package that makes workers of a framework's models, by the module of their base classes."""


@runtime_checkable
class Described(Protocol):
    """A model with a description of its own, such as an agent, which becomes the default description of its worker."""

    @property
    def description(self) -> str:
        """The model's purpose and skills."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A model with a name in the pool, a card, and settings for its calls."""

    name: str
    """Its name in the pool, one line of printable characters."""
    model: Model
    """The model that is called."""
    card: Card
    """The description for planners, with the labels that policies select by."""
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=DEFAULT_OUTPUT_TOKENS))
    """Default sampling parameters; the caller's take precedence in the final step."""
    instructions: str = ""
    """A system prompt for every call, before the caller's own."""
    timeout: float | None = CALL_TIMEOUT
    """Seconds for one call."""
    hedge_after: float | None = None
    """Seconds after which a hedge call goes to a second worker, within `Limits.hedges`."""
    slots: PerLoop[asyncio.Semaphore] | None = field(default=None, compare=False, repr=False)
    """Semaphore that limits concurrent calls; `None` means no limit. Calls of a conductor in the pool take the slots
    of its workers instead; an agent takes a slot for each call of its base model."""
    reasoning: ReasoningMemory = field(default_factory=ReasoningMemory, compare=False, repr=False)
    """Remembers whether the replies of its model begin inside reasoning."""

    @classmethod
    def of(
        cls,
        name: str,
        model_or_name: Model | str | WorkerFunction,
        *,
        description: str | None = None,
        card: Card | None = None,
        instructions: str = "",
        tools: Sequence[AnyTool] = (),
        sampling: Sampling | None = None,
        timeout: float | None = CALL_TIMEOUT,
        hedge_after: float | None = None,
        concurrency: int | None = None,
    ) -> Self:
        """Creates a worker from a model or its `provider:model` name.

        Args:
            name: the worker's name, which replaces the card's.
            model_or_name: a model, its `provider:model` name, or a Python function (see `FunctionModel`).
            description: the worker's purpose, for the planner; by default the card's or the model's own.
            card: the worker's card; its price defaults to the model's.
            instructions: a system prompt for every call, before the caller's own.
            tools: tools that the model may call in every step: Python functions, their names as `module:function`, MCP
                servers such as `MCPServer(["uvx", "mcp-server-time"])`, or their URLs.
            sampling: default sampling parameters of its calls.
            timeout: seconds for one call.
            hedge_after: seconds after which a hedge call goes to a second worker.
            concurrency: maximum number of concurrent calls.

        Raises:
            ConfigError: the model does not exist, a tool is invalid, or `concurrency` is less than 1.
        """
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"worker {name!r}: concurrency={concurrency} allows no call; write 1 or more")
        worker_model = _to_model(model_or_name)
        if not isinstance(worker_model, Model):
            raise ConfigError(f"worker {name!r}: {why_not_a_model(worker_model)}")
        worker = cls(
            name=name,
            model=worker_model,
            card=_complete_card(name, worker_model, card or Card(name=name), description),
            instructions=instructions,
            sampling=_with_output_limit(sampling or Sampling()),
            timeout=timeout,
            hedge_after=hedge_after,
            slots=None if concurrency is None else slots_for(concurrency),
        )
        return worker.with_tools(tools)

    def renamed(self, name: str) -> Self:
        """Returns a copy of the worker with another name, which is also its card's."""
        return replace(self, name=name, card=self.card.model_copy(update={"name": name}))

    def with_price(self, price: Price) -> Self:
        """Returns a copy of the worker with this price of its model.

        Raises:
            ConfigError: the price of the model can't be set, as that of a conductor, whose calls have their own.
        """
        priced_model: Any = copy(self.model)
        try:
            priced_model.price = price
        except AttributeError:
            kind = type(self.model).__name__
            raise ConfigError(f"worker {self.name!r}: the price of a {kind} can't be set in its entry") from None
        return replace(self, model=priced_model, card=self.card.model_copy(update={"price": price}))

    def with_tools(self, tools: Sequence[AnyTool]) -> Self:
        """Returns a copy of the worker with these tools for its model.

        Raises:
            ConfigError: the model can't call tools, or a tool is invalid.
        """
        if not tools:
            return self
        try:
            tool_model = ToolLoopModel(self.model, tools)
        except ConfigError as error:
            raise ConfigError(f"worker {self.name!r}: {error}") from None
        return replace(self, model=tool_model, card=_complete_card(self.name, tool_model, self.card, None))

    @cached_property
    def setup(self) -> WorkerSetup:
        """The card and settings that are stored in traces."""
        return WorkerSetup(
            card=self.card,
            model=self.model.name,
            can=self.model.capabilities.names,
            context=self.model.capabilities.context,
            sampling=self.sampling,
            instructions=self.instructions,
        )

    @classmethod
    def from_setup(cls, setup: WorkerSetup, model: Model) -> Self:
        """Creates the worker with a recorded setup; `model` has the name and the capabilities of `setup`."""
        return cls(
            name=setup.card.name,
            model=model,
            card=setup.card,
            sampling=setup.sampling,
            instructions=setup.instructions,
        )


def _with_output_limit(sampling: Sampling) -> Sampling:
    if sampling.max_tokens is not None:
        return sampling
    return sampling.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})


def _to_model(model_or_name: object) -> object:
    if isinstance(model_or_name, str):
        return model(model_or_name)
    return FunctionModel(model_or_name) if is_worker_function(model_or_name) else model_or_name


def why_not_a_model(thing: object, *, accepted: str = "a model, 'provider:model' or a function") -> str:
    """Explains why a value is not a model, and names the values that are accepted."""
    roots = {base.__module__.partition(".")[0] for base in type(thing).__mro__}
    for root, package in FRAMEWORKS.items():
        if root in roots:  # its repr would show the whole client
            return f"{type(thing).__name__} belongs to another framework; {package} takes it as a worker"
    members = ("name", "capabilities", "price", "complete", "stream", "aclose")
    missing = " and no ".join(member for member in members if not hasattr(thing, member))
    if hasattr(thing, "complete"):
        return f"{redacted_repr(thing)} is not a complete model: it has no {missing}; subclass rl_conductor.Model"
    return f"{redacted_repr(thing)} is not a model; pass {accepted}"


def _complete_card(name: str, model: Model, card: Card, description: str | None) -> Card:
    if description is None:
        description = card.description or (model.description if isinstance(model, Described) else "")
    price = model.price if card.price is None else card.price
    return card.model_copy(update={"name": name, "price": price, "description": description})


def slots_for(count: int) -> PerLoop[asyncio.Semaphore]:
    """Creates a semaphore for each event loop that limits a worker to `count` concurrent calls."""
    return PerLoop(partial(asyncio.Semaphore, count))
