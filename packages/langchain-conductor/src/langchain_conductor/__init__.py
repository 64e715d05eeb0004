"""RL Conductor for LangChain and LangGraph.

Each public name is imported when it is first used; LangGraph is needed for its own names only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_conductor.chat import ChatConductor
    from langchain_conductor.models import ChatModel, RunnableModel
    from langchain_conductor.node import create_conductor
    from langchain_conductor.pool import pool_of
    from langchain_conductor.progress import Progress, aget_progress, get_progress
    from langchain_conductor.runnable import Planned, RunnableConductor

__all__ = [
    "ChatConductor",
    "ChatModel",
    "Planned",
    "Progress",
    "RunnableConductor",
    "RunnableModel",
    "aget_progress",
    "create_conductor",
    "get_progress",
    "pool_of",
]

_MODULES = {
    "ChatConductor": "chat",
    "ChatModel": "models",
    "RunnableModel": "models",
    "create_conductor": "node",
    "pool_of": "pool",
    "Progress": "progress",
    "aget_progress": "progress",
    "get_progress": "progress",
    "Planned": "runnable",
    "RunnableConductor": "runnable",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'langchain_conductor' has no attribute {name!r}")
    value = getattr(import_module(f"langchain_conductor.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
