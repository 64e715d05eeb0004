"""`CountedFunction`: a Python function that may call LangChain's models, as a `Model` of the core."""

from __future__ import annotations

from langchain_conductor.messages import core_usage
from langchain_conductor.models.budget import enforce_budget
from langchain_conductor.models.usage import count_usage
from rl_conductor.integration import FunctionModel, priced
from rl_conductor.types import Completion, Request


class CountedFunction(FunctionModel):
    """A Python function whose calls of chat models count in the usage and the limits of the run."""

    async def complete(self, request: Request) -> Completion:
        """Calls the function."""
        with count_usage() as usage, enforce_budget(self.name, None):
            completion = await super().complete(request)
        if usage.total is None:
            return completion
        return completion.model_copy(update={"usage": priced(core_usage(usage.total), None)})
