"""`TaskModel`: base class of models that pass a worker's prompt to an engine, retriever, agent or workflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from llama_index.core.schema import NodeWithScore

from rl_conductor import Capabilities, Completion, Message, Price, Request, Usage
from rl_conductor.integration import OnePieceModel, checked, priced, require
from rl_conductor.types import FREE

from .held_llms import holds_conductors_only
from .sources import SourcedCompletion

S = TypeVar("S")


@dataclass(frozen=True)
class TaskResult:
    """The reply of an engine, retriever, agent or workflow."""

    text: str
    source_nodes: tuple[NodeWithScore, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the response, such as a router's `selector_result`."""


class TaskModel(OnePieceModel, ABC, Generic[S]):
    """A model that answers by running an object of LlamaIndex, and replies in one piece.

    The calls of a conductor that is the object's own LLM are in the trace, each with its price. The tokens of other
    LLMs are not; they report them to LlamaIndex itself.
    """

    def __init__(self, source: S, *, name: str, price: Price | None) -> None:
        self.source = source
        self.name = f"llamaindex:{name}"
        self.is_priced_by_calls = price is None and holds_conductors_only(source)
        """Whether it costs what the calls of the conductors in it cost, and nothing else."""
        self.price = FREE if self.is_priced_by_calls else price
        self.capabilities = Capabilities(plans=False)

    @abstractmethod
    async def run_task(self, request: Request) -> TaskResult:
        """Answers the last user message of `request`, which is the worker's prompt."""

    async def complete(self, request: Request) -> Completion:
        """Returns the reply with its source nodes."""
        require(self, request)
        result = await self.run_task(request)
        completion = SourcedCompletion(
            message=Message.assistant(result.text),
            usage=priced(Usage(), self.price),
            model=self.name,
            source_nodes=result.source_nodes,
            response_metadata=result.metadata,
        )
        return checked(completion, request)
