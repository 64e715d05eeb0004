"""RL Conductor for LangChain and LangGraph.

Each public name is imported on its first use; LangGraph and LangChain are needed for their own names only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_conductor.chat import ChatConductor
    from langchain_conductor.feedback import acreate_feedback, create_feedback, run_id
    from langchain_conductor.graph.node import create_conductor
    from langchain_conductor.graph.progress import Progress, aget_progress, get_progress
    from langchain_conductor.guardrail_middleware import GuardrailMiddleware
    from langchain_conductor.models.chat_model import ChatModel
    from langchain_conductor.models.runnable_model import RunnableModel
    from langchain_conductor.pool import pool_of
    from langchain_conductor.runnable import Planned, RunnableConductor

__all__ = [
    "ChatConductor",
    "ChatModel",
    "GuardrailMiddleware",
    "Planned",
    "Progress",
    "RunnableConductor",
    "RunnableModel",
    "acreate_feedback",
    "aget_progress",
    "create_conductor",
    "create_feedback",
    "get_progress",
    "pool_of",
    "run_id",
]

_MODULES = {
    "ChatConductor": "chat",
    "ChatModel": "models.chat_model",
    "GuardrailMiddleware": "guardrail_middleware",
    "RunnableModel": "models.runnable_model",
    "acreate_feedback": "feedback",
    "create_feedback": "feedback",
    "run_id": "feedback",
    "create_conductor": "graph.node",
    "pool_of": "pool",
    "Progress": "graph.progress",
    "aget_progress": "graph.progress",
    "get_progress": "graph.progress",
    "Planned": "runnable",
    "RunnableConductor": "runnable",
}


if not TYPE_CHECKING:  # else every name would pass type checks

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'langchain_conductor' has no attribute {name!r}")
        value = getattr(import_module(f"langchain_conductor.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
