"""`TaskModel`: base class of models that pass a worker's prompt to an engine, retriever, agent or workflow.

Source nodes and metadata are part of their completions, but not of the serialised trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from llama_index.core.schema import NodeWithScore
from pydantic import Field

from rl_conductor import Capabilities, Completion, Message, Price, Request, Trace, Usage
from rl_conductor.integration import OnePieceModel, checked, priced, require

S = TypeVar("S")


@dataclass(frozen=True)
class TaskResult:
    """The reply of an engine, retriever, agent or workflow."""

    text: str
    source_nodes: tuple[NodeWithScore, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the response, such as a router's `selector_result`."""


class SourcedCompletion(Completion):
    """A completion with the nodes that it is based on. A trace in memory contains it; JSON omits these fields."""

    source_nodes: tuple[NodeWithScore, ...] = Field(default=(), exclude=True, repr=False)
    """The passages that the reply is based on."""
    response_metadata: Mapping[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """The metadata of the engine's response."""


class SourcedCall(NamedTuple):
    """A successful call that returned sources, and its place in the run."""

    round: int
    step: int
    worker: str
    completion: SourcedCompletion


def sourced_calls(trace: Trace) -> Iterator[SourcedCall]:
    """Iterates over the calls that returned source nodes or metadata, in the order of their steps."""
    for number, round_ in enumerate(trace.rounds):
        for result in round_.results:
            for call in result.calls:
                completion = call.completion
                if isinstance(completion, SourcedCompletion) and (
                    completion.source_nodes or completion.response_metadata
                ):
                    yield SourcedCall(number, result.index, call.worker or result.step.worker, completion)


def unique_nodes(calls: Iterable[SourcedCall]) -> tuple[NodeWithScore, ...]:
    """Returns the source nodes of all calls; of a node that several found, the first."""
    nodes: dict[str, NodeWithScore] = {}
    for call in calls:
        for node in call.completion.source_nodes:
            nodes.setdefault(node.node_id, node)
    return tuple(nodes.values())


class TaskModel(OnePieceModel, ABC, Generic[S]):
    """A model that answers by running an object of LlamaIndex, and replies in one piece.

    The tokens that the object's own LLM uses are not in the trace; that LLM reports them to LlamaIndex itself.
    """

    def __init__(self, source: S, *, name: str, price: Price | None) -> None:
        self.source = source
        self.name = f"llamaindex:{name}"
        self.price = price
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
