"""`NestedConductor`: a Conductor as a worker of another, with the settings of the chat model that it comes from."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from langchain_conductor.call_defaults import CallDefaults
from rl_conductor import Conductor
from rl_conductor.integration import WrapperModel
from rl_conductor.types import Completion, Delta, Request


class NestedConductor(WrapperModel):
    """A Conductor that applies `defaults` to every request."""

    def __init__(self, conductor: Conductor, defaults: CallDefaults) -> None:
        super().__init__(conductor)
        self.defaults = defaults

    async def complete(self, request: Request) -> Completion:
        """Returns the whole reply."""
        await self.defaults.wait_for_turn()
        with self.defaults.in_context():
            return await self.model.complete(self.defaults.apply(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply of the final worker."""
        await self.defaults.wait_for_turn()
        with self.defaults.in_context():
            async with aclosing(self.model.stream(self.defaults.apply(request))) as deltas:
                async for delta in deltas:
                    yield delta
