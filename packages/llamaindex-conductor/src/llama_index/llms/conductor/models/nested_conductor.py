"""A LlamaIndex `Conductor` as a worker or the planner of another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from llama_index.core.base.llms.types import LLMMetadata
from llama_index.core.rate_limiter import BaseRateLimiter

from rl_conductor import Completion, Conductor, Request, Sampling, Trace
from rl_conductor.integration import WrapperModel
from rl_conductor.trace import AnswerDelta, Finished, ReasoningDelta
from rl_conductor.types import Delta

from .sources import SourcedCompletion, sourced_calls, unique_nodes


@runtime_checkable
class ConductorHost(Protocol):
    """A LlamaIndex LLM that wraps a Conductor of the core, as this package's own `Conductor` does."""

    @property
    def conductor(self) -> Conductor:
        """The wrapped Conductor, which joins the other's pool instead of the LLM."""

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of its final worker."""

    @property
    def metadata(self) -> LLMMetadata:
        """Metadata of the LLM."""

    @property
    def rate_limiter(self) -> BaseRateLimiter | None:
        """Rate limiter of the LLM."""


class NestedConductorModel(WrapperModel):
    """The Conductor of a host, subject to the host's rate limiter. Observers see the calls inside it, not its own."""

    def __init__(self, host: ConductorHost) -> None:
        super().__init__(host.conductor)
        self.host = host

    async def complete(self, request: Request) -> Completion:
        """Returns the answer, with the usage and the source nodes of the whole run."""
        await self._acquire()
        return _sourced_completion(await self.host.conductor.run(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the answer as the final worker writes it."""
        await self._acquire()
        async with aclosing(self.host.conductor.events(request)) as events:
            async for event in events:
                if isinstance(event, ReasoningDelta):
                    yield Delta(reasoning=event.text)
                elif isinstance(event, AnswerDelta) and not event.is_refusal:
                    yield Delta(text=event.text)
                elif isinstance(event, Finished) and event.trace.completion is not None:
                    yield Delta(completion=_sourced_completion(event.trace))

    async def _acquire(self) -> None:
        if self.host.rate_limiter is not None:
            await self.host.rate_limiter.async_acquire()


def _sourced_completion(trace: Trace) -> Completion:
    assert trace.completion is not None
    fields = {name: getattr(trace.completion, name) for name in Completion.model_fields}
    return SourcedCompletion(**fields, source_nodes=unique_nodes(sourced_calls(trace)))
