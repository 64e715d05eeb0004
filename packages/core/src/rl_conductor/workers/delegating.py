"""What workers that ask a base model share: its calls are reserved, settled and added up like any other's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from rl_conductor.calling import Caller
from rl_conductor.ledger import Ledger
from rl_conductor.limits import Limits
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.models.base import require
from rl_conductor.trace import Call
from rl_conductor.types import Completion, Delta, Message, Price, Request, ResponseFormat, total


@dataclass
class Base:
    """The base model during one request to a worker: asked as often as it takes, within the run's limits."""

    model: Model
    request: Request
    """The worker's own; its sampling and timeout hold for each call."""
    calls: list[Call] = field(default_factory=list)
    _caller: Caller = field(default_factory=lambda: Caller(Ledger(Limits()), retries=0))

    async def ask(self, messages: tuple[Message, ...], form: ResponseFormat | None = None) -> str:
        """The base model's reply to `messages`, held to `form`."""
        asked = self.request.model_copy(update={"messages": messages, "response_format": form})
        return (await self._caller.ask(self.model, asked, calls=self.calls)).text

    def reply(self, text: str) -> Completion:
        """The worker's reply, with the usage of every call so far."""
        last = self.calls[-1].completion if self.calls else None
        return Completion(
            message=Message.assistant(text),
            usage=total(call.usage for call in self.calls),
            model=last.model if last else self.model.name,
        )


@dataclass(frozen=True)
class Brief:
    """What a worker tells its base model before any request: always the same, so that engines need to read it once."""

    rules: str
    examples: tuple[tuple[str, str], ...] = ()
    """Requests and the replies to them."""

    def before(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """`conversation` after the brief; what its own system messages say joins the rules."""
        rules = (self.rules, *(message.text for message in conversation if message.role == "system"))
        shown = (turn for asked, reply in self.examples for turn in (Message.user(asked), Message.assistant(reply)))
        said = (message for message in conversation if message.role != "system")
        return (Message.system("\n\n".join(rules)), *shown, *said)


class DelegatingModel(ABC):
    """A worker whose replies are made by asking a base model; `answer` says how."""

    kind: str
    """The first part of its name."""

    def __init__(self, base: Model | str) -> None:
        self.base = model(base) if isinstance(base, str) else base
        self.name = f"{self.kind}:{self.base.name}"
        self.price: Price | None = self.base.price
        self.capabilities = Capabilities(delegates=True, reasoning_start="outside")

    def over(self, base: Model) -> Self:
        """The same worker, asking `base` instead."""
        other = copy(self)
        other.base = base
        return other

    @abstractmethod
    async def answer(self, base: Base) -> str:
        """The worker's reply to `base.request`."""

    async def complete(self, request: Request) -> Completion:
        """The whole reply, with the usage of all calls that it took."""
        require(self, request)
        base = Base(self.base, request)
        return base.reply(await self.answer(base))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply in one piece: before the end there is none."""
        completion = await self.complete(request)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    async def aclose(self) -> None:
        """Close the base model."""
        await self.base.aclose()
