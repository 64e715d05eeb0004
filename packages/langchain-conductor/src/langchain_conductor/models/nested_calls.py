"""Records the model calls and the tools inside of agents and chains for the trace of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, Generation
from pydantic_core import to_json

from langchain_conductor.models.replies import core_completion
from rl_conductor.errors import ConductorError
from rl_conductor.integration import current_scope
from rl_conductor.trace import Call, ToolUse
from rl_conductor.types import Completion, Message, Price, Usage

GRAPH_SIGNAL = "GraphBubbleUp"
"""The base class of the exceptions with which LangGraph's tools pause or leave a graph."""


@dataclass
class NestedCalls:
    """Collects the calls and tools inside of one runnable for the record of the call around it, if there is one."""

    _tools: dict[UUID, _ToolInProgress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._records = current_scope.get().nested

    def add_call(self, call: CallInProgress, usage: Usage, generation: Generation | None) -> None:
        """Records a call that ended, with its reply if it has one."""
        self._add_call(call, usage, "ok", completion=generation and call.completion(generation, usage))

    def add_failure(self, call: CallInProgress, usage: Usage, error: BaseException | None) -> None:
        """Records a call that failed, by the type of its error, or that was cancelled if there is none."""
        if error is None:
            self._add_call(call, usage, "cancelled", error="cancelled before it was done")
        else:
            self._add_call(call, usage, "error", error=type(error).__name__)  # its text may contain an API key

    def _add_call(
        self, call: CallInProgress, usage: Usage, outcome: Literal["ok", "error", "cancelled"], **details: Any
    ) -> None:
        if self._records is None:
            return
        seconds = time.monotonic() - call.started
        record = Call(model=call.model, usage=usage, outcome=outcome, started=call.started, seconds=seconds, **details)
        self._records.add([record], began=0.0)

    def start_tool(self, run_id: UUID, name: str, arguments: Mapping[str, Any] | None, text: str) -> None:
        """Remembers that a tool began to work, with its arguments or the text that it got in their place."""
        json_or_text = text if arguments is None else to_json(arguments, fallback=str).decode()
        self._tools[run_id] = _ToolInProgress(name, json_or_text)

    def end_tool(self, run_id: UUID, result: object) -> None:
        """Records the use of a tool that ended."""
        is_error = getattr(result, "status", None) == "error"
        self._add_tool(run_id, str(result.text if isinstance(result, BaseMessage) else result), is_error=is_error)

    def fail_tool(self, run_id: UUID, error: BaseException) -> None:
        """Records the use of a tool that raised an error; not if it only paused or left its graph."""
        if any(kind.__name__ == GRAPH_SIGNAL for kind in type(error).__mro__):
            self._tools.pop(run_id, None)
        else:
            self._add_tool(run_id, f"error: {type(error).__name__}", is_error=True)

    def _add_tool(self, run_id: UUID, result: str, *, is_error: bool) -> None:
        tool = self._tools.pop(run_id, None)
        if tool is None or self._records is None:
            return
        use = ToolUse(
            name=tool.name,
            arguments=tool.arguments,
            result=result,
            is_error=is_error,
            started=tool.started,
            seconds=time.monotonic() - tool.started,
        )
        self._records.add([use], began=0.0)


@dataclass
class CallInProgress:
    """A model call that LangChain reported."""

    model: str
    """`provider:name`."""
    price: Price | None
    started: float = field(default_factory=time.monotonic)

    def completion(self, generation: Generation, usage: Usage) -> Completion | None:
        """Converts the reply; `None` if the core has no form for it."""
        if not isinstance(generation, ChatGeneration):
            return Completion(message=Message.assistant(generation.text), usage=usage, model=self.model)
        if not isinstance(generation.message, AIMessage):
            return None
        try:
            completion = core_completion(generation.message, model=self.model, price=self.price)
        except ConductorError:
            return None
        return completion.model_copy(update={"usage": usage})


@dataclass
class _ToolInProgress:
    name: str
    arguments: str
    started: float = field(default_factory=time.monotonic)


def model_name(metadata: Mapping[str, Any], serialized: Mapping[str, Any] | None) -> str:
    """Returns `provider:name` from the metadata that a model reports to tracers; else its class, if that is known."""
    provider = metadata.get("ls_provider", "langchain")
    return f"{provider}:{metadata.get('ls_model_name') or (serialized or {}).get('name') or 'unknown'}"
