"""A LlamaIndex `Conductor` as another's worker or planner."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from llama_index.core.base.llms.types import LLMMetadata
from llama_index.core.rate_limiter import BaseRateLimiter

from rl_conductor import Completion, Conductor, Request, Sampling
from rl_conductor.models.base import WrapperModel
from rl_conductor.types import Delta


@runtime_checkable
class Conducted(Protocol):
    """What runs a Conductor and can be put into another's pool: then that Conductor itself works there."""

    @property
    def conductor(self) -> Conductor:
        """The Conductor."""

    @property
    def sampling(self) -> Sampling:
        """What it asks of whoever gives the answer."""

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex asks of a model."""

    @property
    def rate_limiter(self) -> BaseRateLimiter | None:
        """What its calls wait for."""


class NestedModel(WrapperModel):
    """The Conductor of `conducted`. Observers are told of the calls in it, so its own are none to them."""

    def __init__(self, conducted: Conducted) -> None:
        super().__init__(conducted.conductor)
        self.conducted = conducted

    async def complete(self, request: Request) -> Completion:
        """The answer, with the usage of the whole run."""
        await self._turn()
        return await self.model.complete(request)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The answer as the final worker writes it."""
        await self._turn()
        async with aclosing(self.model.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def _turn(self) -> None:
        if self.conducted.rate_limiter is not None:
            await self.conducted.rate_limiter.async_acquire()
