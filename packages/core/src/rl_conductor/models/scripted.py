"""`ScriptedModel`: a `Model` with predefined replies, for tests without a network.

Unlike a mock it obeys the whole contract (streaming, usage, prices, capabilities, errors, cancellation),
and `assert_complete` fails if replies are left over.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence

from rl_conductor.errors import ScriptError
from rl_conductor.models.base import Capabilities, StreamingModel, require
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.checks import checked
from rl_conductor.types import FREE, Completion, Delta, Message, Price, Request, Usage

ALL = Capabilities(tools=True, images=True, files=True, json_schema=True, array_bounds=True, grammar=True)

Scripted = str | Message | Completion | Exception | Sequence[str | Exception]
"""A reply: its text, a message with tool calls, a whole completion, an error to raise, or the pieces of a
stream, of which one may be the error that breaks it off."""


class ScriptedModel(StreamingModel):
    """Answers each request with the next predefined reply, or with the result of a function of the request."""

    def __init__(
        self,
        replies: str | Message | Completion | Exception | Sequence[Scripted] | Callable[[Request], Scripted],
        *,
        name: str = "scripted",
        delay: float | Callable[[Request], float] = 0.0,
        price: Price | None = FREE,
        capabilities: Capabilities = ALL,
    ) -> None:
        """`delay` is in seconds, before each reply. A single reply as `replies` is returned for every request."""
        self.name = f"scripted:{name}"
        self.price = price
        self.capabilities = capabilities
        self.requests: list[Request] = []
        """All requests so far, including failed and cancelled ones."""
        self.in_flight = 0
        self.peak = 0
        """The maximum number of concurrent calls so far."""
        self._replies: list[Scripted] = []
        if callable(replies):
            self._make = replies
        elif isinstance(replies, str | Message | Completion | Exception):
            self._make = lambda _: replies
        else:
            self._replies = list(replies)
            self._make = lambda _: self._next()
        self._delay = delay

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the next reply word by word."""
        require(self, request)
        self.requests.append(request)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self._delay(request) if callable(self._delay) else self._delay)
            reply = self._make(request)
            if isinstance(reply, Completion) and reply.message.reasoning:
                yield Delta(reasoning=reply.message.reasoning)
            for piece in _pieces(reply):
                if isinstance(piece, Exception):
                    raise piece
                yield Delta(text=piece)
            yield Delta(completion=checked(self._completion(request, reply), request))
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        """Does nothing; there are no resources to release."""

    def assert_complete(self) -> None:
        """Raises `AssertionError` if any predefined reply was not used."""
        assert not self._replies, f"{self.name} still has {len(self._replies)} replies: {self._replies!r}"

    def _next(self) -> Scripted:
        if not self._replies:
            raise ScriptError(f"{self.name} was asked {len(self.requests)} times, more than its script has replies")
        return self._replies.pop(0)

    def _completion(self, request: Request, reply: Scripted) -> Completion:
        if isinstance(reply, Completion):
            return reply
        if isinstance(reply, Message):
            message = reply
        else:
            message = Message.assistant("".join(str(piece) for piece in _pieces(reply)))
        usage = Usage(
            input_tokens=sum(len(m.text.split()) for m in request.messages),
            output_tokens=len(message.text.split()) + len(message.tool_calls),
        )
        return Completion(
            message=message,
            usage=priced(usage, self.price),
            finish_reason="tool_calls" if message.tool_calls else "stop",
            model=self.name,
        )


def _pieces(reply: Scripted) -> Sequence[str | Exception]:
    if isinstance(reply, Exception):
        return [reply]
    if isinstance(reply, Completion | Message):
        return [] if isinstance(reply, Completion) and reply.is_refusal else _pieces(reply.text)
    if isinstance(reply, str):
        return re.findall(r"\S*\s|\S+", reply)
    return reply
