"""`DelegatingModel`: the base class of workers that call a base model, within the budget and usage of the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

from rl_conductor.calls.context import RunContext
from rl_conductor.calls.model_call import ModelCall
from rl_conductor.calls.scope import current_scope, report_calls, report_usage
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.models.base import OnePieceModel, require
from rl_conductor.models.replies.size import max_reply_chars
from rl_conductor.trace.trace import Call
from rl_conductor.types import Completion, Message, Price, Request, ResponseFormat, Usage, total
from rl_conductor.workflow.limits import Limits


@dataclass
class BaseModelSession:
    """Calls the base model during one request to a worker, within the limits of the run."""

    model: Model
    request: Request
    """The request to the worker; its sampling and timeout apply to each call of the base model."""
    retries: int = 0
    """Maximum number of retries of each call; without any, the request to the worker is retried as a whole."""
    calls: list[Call] = field(default_factory=list)
    other_usage: list[Usage] = field(default_factory=list)
    """Usage that is not the base model's, such as that of a conductor inside of a tool."""
    run: RunContext = field(init=False)

    def __post_init__(self) -> None:
        scope = current_scope.get()
        limits = Limits(reply_chars=max_reply_chars.get())
        self.run = RunContext(limits=limits, retries=self.retries, keep_prompts=False, policies=scope.policies)
        if scope.budget is not None:
            self.run.budget = scope.budget  # not a budget inside of it, which would count as a nested conductor
        self._slot = scope.slot

    async def complete(self, request: Request) -> Completion:
        """Returns the base model's completion of `request`."""
        call = ModelCall(run=self.run, model=self.model, request=request, calls=self.calls, slot=self._slot)
        return await call.complete()

    async def ask(self, messages: tuple[Message, ...], response_format: ResponseFormat | None = None) -> str:
        """Returns the base model's reply to `messages`, constrained to `response_format`."""
        request = self.request.model_copy(update={"messages": messages, "response_format": response_format})
        return (await self.complete(request)).text

    def reply(self, text: str) -> Completion:
        """Builds the worker's reply with the usage of all calls so far."""
        last = self.calls[-1].completion if self.calls else None
        return Completion(
            message=Message.assistant(text), usage=self.usage, model=last.model if last else self.model.name
        )

    @property
    def usage(self) -> Usage:
        """The usage of all calls so far."""
        return total([*(call.usage for call in self.calls), *self.other_usage])

    def report(self) -> None:
        """Reports the calls and their usage to the call that this session is part of."""
        report_calls(self.calls)
        report_usage(self.other_usage)
        nested = current_scope.get().nested
        if nested is not None:
            nested.add(self.calls, self.run.began)


class DelegatingModel(OnePieceModel, ABC):
    """A worker that produces its replies by calling a base model; subclasses implement `answer`."""

    kind: str
    """Provider prefix of the worker's name, such as `coder`."""

    def __init__(self, base: Model | str, *, base_options: Mapping[str, Any] | None = None) -> None:
        self.base = model(base, **(base_options or {})) if isinstance(base, str) else base
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
        try:
            return session.reply(await self.answer(session))
        finally:
            session.report()

    async def aclose(self) -> None:
        """Closes the base model."""
        await self.base.aclose()
