"""The RL Conductor as a LlamaIndex LLM: it plans a workflow over other models, indexes and agents, and runs it."""

from .base import Conductor
from .instrumentation import ConductorEvent
from .models.agents import AgentModel, ChatEngineModel, WorkflowModel
from .models.llm_model import LLMModel
from .models.retrieval import QueryEngineModel, RetrieverModel
from .models.sources import SourcedCompletion
from .workers import pool_of

__all__ = [
    "AgentModel",
    "ChatEngineModel",
    "Conductor",
    "ConductorEvent",
    "LLMModel",
    "QueryEngineModel",
    "RetrieverModel",
    "SourcedCompletion",
    "WorkflowModel",
    "pool_of",
]
