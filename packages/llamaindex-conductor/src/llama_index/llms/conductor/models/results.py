"""Converts the results of functions and workflows to the text of a reply."""

from __future__ import annotations

from collections.abc import Iterable

from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.base.llms.types import ChatResponse, CompletionResponse
from llama_index.core.schema import MetadataMode, NodeWithScore
from typing_extensions import override

from rl_conductor import Completion
from rl_conductor.integration import FunctionModel, WorkerFunction, result_text
from rl_conductor.types import FREE

from .held_llms import holds_conductors_only, holds_other_llms
from .sources import SourcedCompletion, nodes_of_result

EMPTY_RESULT = "(nothing was found)"
"""Reply of a retriever that finds no passage; an empty reply would count as a failure."""


class LlamaIndexFunction(FunctionModel):
    """A Python function that may return responses of LlamaIndex's LLMs, engines and retrievers.

    Its price is unknown if it holds an LLM that is not a conductor.
    """

    def __init__(self, function: WorkerFunction) -> None:
        super().__init__(function)
        self.is_priced_by_calls = holds_conductors_only(function)
        """Whether it costs what the calls of the conductors in it cost, and nothing else."""
        self.price = None if holds_other_llms(function) else FREE

    @override
    def reply_text(self, result: object) -> str | None:
        """Converts the function's result to text; `None` if it is not a reply."""
        return None if result is None else text_of_result(result)

    @override
    def to_completion(self, text: str, result: object) -> Completion:
        """Builds the completion of a function's result, with its source nodes."""
        completion = super().to_completion(text, result)
        return SourcedCompletion(**dict(completion), source_nodes=nodes_of_result(result))


def text_of_result(result: object) -> str | None:
    """Converts a result to text: the answer of a response, the passages of nodes, and JSON of other data.

    Returns:
        `None` for an object that can't be written as text or JSON.
    """
    match result:
        case AgentOutput() if result.structured_response is not None:
            result = result.structured_response
        case ChatResponse():
            result = result.message.content or ""
        case CompletionResponse():
            result = result.text
        case [*_, ChatResponse() | CompletionResponse() as last]:  # a stream, whose last piece has all of the text
            return text_of_result(last)
        case [NodeWithScore(), *_]:
            result = passages(node for node in result if isinstance(node, NodeWithScore))
        case _ if isinstance(result, AgentOutput) or hasattr(result, "source_nodes"):  # the latter: of an engine
            result = str(result)
    return result_text(result)


def passages(nodes: Iterable[NodeWithScore]) -> str:
    """Joins the text of nodes as LLMs read it."""
    return "\n\n".join(node.node.get_content(metadata_mode=MetadataMode.LLM) for node in nodes) or EMPTY_RESULT
