"""The source nodes of replies, which are part of their completions, but not of the serialised trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from llama_index.core.schema import NodeWithScore
from pydantic import Field

from rl_conductor import Completion, Trace


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


def nodes_of_result(result: object) -> tuple[NodeWithScore, ...]:
    """Returns the source nodes in the result of an engine, a retriever, a tool or a function."""
    nodes = getattr(result, "source_nodes", result)
    if isinstance(nodes, str) or not isinstance(nodes, Sequence):
        return ()
    return tuple(node for node in nodes if isinstance(node, NodeWithScore))
