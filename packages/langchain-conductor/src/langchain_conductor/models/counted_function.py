"""`CountedFunction`: a Python function that may call LangChain's models, as a `Model` of the core."""

from __future__ import annotations

from collections.abc import Mapping

from langchain_core.messages import BaseMessage
from typing_extensions import override

from langchain_conductor.models.budget import enforce_budget
from langchain_conductor.models.runnable_model import MESSAGES, is_passages, text_of_output
from rl_conductor.integration import FunctionModel
from rl_conductor.types import Completion, Request, total


class CountedFunction(FunctionModel):
    """A Python function that may call chat models; they count in the usage and the limits of the run."""

    async def complete(self, request: Request) -> Completion:
        with enforce_budget(self.name, None) as calls:
            completion = await super().complete(request)
        return completion.model_copy(update={"usage": total(calls.usages)}) if calls.usages else completion

    @override
    def reply_text(self, result: object) -> str | None:
        """Converts the function's result to text: messages, passages and states of graphs as a runnable's."""
        is_state = isinstance(result, Mapping) and bool(result.get(MESSAGES))
        if is_state or is_passages(result) or isinstance(result, BaseMessage):
            return text_of_output(result)
        return super().reply_text(result)
