"""`Model`, the interface that planners, workers and the Conductor itself implement.

An adapter translates requests, replies and errors of one vendor's library. It does not retry, because the executor
does, and it does not log. Its module imports the vendor's library.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Literal, Protocol, Self, runtime_checkable

from rl_conductor.errors import BadRequestError, BadResponseError
from rl_conductor.text.reasoning import ReasoningStart
from rl_conductor.types import Completion, Delta, Price, Request
from rl_conductor.types.value import UserValue

DEFAULT_TIMEOUT = 600.0
"""Timeout in seconds for requests without one, for APIs that require a number."""


class Capabilities(UserValue):
    """Features that a model supports; a request for any other raises `BadRequestError` before the call."""

    tools: bool = False
    """Requests may offer tools."""
    images: bool = False
    """Messages may contain images."""
    files: bool = False
    """Messages may contain PDF files."""
    json_schema: bool = False
    """Replies can be constrained to a JSON schema."""
    array_bounds: bool = False
    """JSON schemas may use `minItems` and `maxItems`."""
    grammar: bool = False
    """Decoding can be constrained by a `Grammar`."""
    lengths: Literal["grammar", "check"] = "grammar"
    """How length limits in plans are enforced: by the grammar, or by validation if grammars are slow (XGrammar)."""
    delegates: bool = False
    """The model makes calls of its own and accounts for each of them itself (a Conductor)."""
    reasoning_start: ReasoningStart = "unknown"
    """Whether replies begin `inside` reasoning, which the chat template has opened, or `outside` of it."""
    context: int | None = None
    """Maximum tokens of prompt and reply together, if known without a call."""
    thinking_tokens: int = 0
    """The model's own budget for thinking, which the maximum of tokens of a reply has to exceed; 0 without one."""
    runs_in: Literal["server", "process"] = "server"
    """The place in which the model runs: in this process, it is small, and all calls share the processor or GPU."""
    plans: bool = True
    """The model can be a planner. A function, an agent or a chain can't: it would do the task that it should plan."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the supported features, as traces store them: without `plans`, which most models have."""
        return frozenset(name for name, value in self if value is True and name != "plans")

    @classmethod
    def of_names(cls, names: Collection[str], **settings: object) -> Self:
        """Returns the capabilities with these `names`, as traces store them, and with other fields in `settings`.

        Names that there are not, as in the trace of a later version, are left out.
        """
        features = {name: True for name, field in cls.model_fields.items() if field.default is False and name in names}
        return cls.model_validate({**features, **settings})


@runtime_checkable
class Model(Protocol):
    """Anything that answers a `Request`. A subclass defines `name` and `complete`; the rest has defaults."""

    @property
    @abstractmethod
    def name(self) -> str:
        """`provider:model`, as in `model("openai:gpt-6-sol")`."""

    @property
    def capabilities(self) -> Capabilities:
        """The features that the model supports; only text by default."""
        return Capabilities()

    @property
    def price(self) -> Price | None:
        """The price of a call; `None`, the default, if unknown."""
        return None

    @abstractmethod
    async def complete(self, request: Request) -> Completion:
        """Returns the complete reply. Raises `ModelError`, also for an empty reply."""

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply; the last delta carries the `Completion`, with the text of all deltas.

        Closing the generator early cancels the call. By default, the reply comes in one piece.
        """
        return in_one_piece(self, request)

    async def aclose(self) -> None:
        """Closes connections and frees memory; the model can be used again afterwards."""
        return


async def in_one_piece(model: Model, request: Request) -> AsyncGenerator[Delta, None]:
    """Yields the complete reply of a model as a stream of one piece."""
    completion = await model.complete(request)
    yield Delta(text=completion.text, reasoning=completion.message.reasoning)
    yield Delta(completion=completion)


class OnePieceModel:
    """Base class of models that know their reply only when it is complete; subclasses define `complete`."""

    def stream(self: Model, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece."""
        return in_one_piece(self, request)

    async def aclose(self) -> None:
        """Does nothing; there are no resources to release."""


class StreamingModel:
    """Base class of models that generate every reply piece by piece; subclasses define `stream`."""

    async def complete(self: Model, request: Request) -> Completion:
        """Returns the complete reply."""
        return await collect(self.stream(request))


class WrapperModel:
    """Base class of models that wrap another; name, capabilities and price are read from it on every access."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """The name of the wrapped model."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the wrapped model, which may change when it is loaded."""
        return self.model.capabilities

    @property
    def price(self) -> Price | None:
        """The price of the wrapped model."""
        return self.model.price

    async def aclose(self) -> None:
        """Closes the wrapped model."""
        await self.model.aclose()


FORMATS = {"json_schema": "a JSON schema", "grammar": "a grammar"}
"""Names of these capabilities in error messages."""


def require(model: Model, request: Request) -> None:
    """Raises `BadRequestError` if `request` needs a feature that `model` does not support."""
    capabilities = model.capabilities
    missing = [FORMATS.get(name, name) for name in request.needs if not getattr(capabilities, name)]
    if missing:
        raise BadRequestError(f"model {model.name!r} can't take {' or '.join(missing)}", model=model.name)


async def collect(deltas: AsyncGenerator[Delta, None]) -> Completion:
    """Reads a stream to its completion and closes it; raises `BadResponseError` if it ends without one."""
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.completion is not None:
                return delta.completion
    raise BadResponseError("the stream ended before the reply was complete", model="unknown")
