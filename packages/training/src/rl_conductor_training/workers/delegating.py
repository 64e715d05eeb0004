"""`DelegatingModel`: the base class of workers that call a base model, within the budget and usage of the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from rl_conductor.calls.budget import Budget
from rl_conductor.calls.model_call import ModelCaller
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.models.base import require
from rl_conductor.trace.trace import Call
from rl_conductor.types import Completion, Delta, Message, Price, Request, ResponseFormat, total
from rl_conductor.workflow.limits import Limits


@dataclass
class BaseModelSession:
    """Calls the base model during one request to a worker, within the limits of the run."""

    model: Model
    request: Request
    """The request to the worker; its sampling and timeout apply to each call of the base model."""
    calls: list[Call] = field(default_factory=list)
    _caller: ModelCaller = field(default_factory=lambda: ModelCaller(Budget(Limits()), retries=0))

    async def ask(self, messages: tuple[Message, ...], response_format: ResponseFormat | None = None) -> str:
        """Returns the base model's reply to `messages`, constrained to `response_format`."""
        request = self.request.model_copy(update={"messages": messages, "response_format": response_format})
        return (await self._caller.complete(self.model, request, calls=self.calls)).text

    def reply(self, text: str) -> Completion:
        """Builds the worker's reply with the usage of all calls so far."""
        last = self.calls[-1].completion if self.calls else None
        return Completion(
            message=Message.assistant(text),
            usage=total(call.usage for call in self.calls),
            model=last.model if last else self.model.name,
        )


@dataclass(frozen=True)
class PromptTemplate:
    """A fixed system prompt with examples, the same for every request, so that engines can cache its prefix."""

    rules: str
    examples: tuple[tuple[str, str], ...] = ()
    """Pairs of a request and its reply."""

    def to_messages(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """Puts the template before `conversation` and appends the conversation's system messages to the rules."""
        rules = (self.rules, *(message.text for message in conversation if message.role == "system"))
        demonstrations = (
            turn for question, reply in self.examples for turn in (Message.user(question), Message.assistant(reply))
        )
        turns = (message for message in conversation if message.role != "system")
        return (Message.system("\n\n".join(rules)), *demonstrations, *turns)


class DelegatingModel(ABC):
    """A worker that produces its replies by calling a base model; subclasses implement `answer`."""

    kind: str
    """Provider prefix of the worker's name, such as `coder`."""

    def __init__(self, base: Model | str) -> None:
        self.base = model(base) if isinstance(base, str) else base
        self.name = f"{self.kind}:{self.base.name}"
        self.price: Price | None = self.base.price
        self.capabilities = Capabilities(delegates=True, reasoning_start="outside")

    def with_base(self, base: Model) -> Self:
        """Returns a copy of the worker that calls `base` instead."""
        clone = copy(self)
        clone.base = base
        return clone

    @abstractmethod
    async def answer(self, session: BaseModelSession) -> str:
        """Returns the worker's reply to `session.request`."""

    async def complete(self, request: Request) -> Completion:
        """Returns the reply with the usage of all calls of the base model."""
        require(self, request)
        session = BaseModelSession(self.base, request)
        return session.reply(await self.answer(session))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece, because it is only known at the end."""
        completion = await self.complete(request)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    async def aclose(self) -> None:
        """Closes the base model."""
        await self.base.aclose()
