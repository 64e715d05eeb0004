"""The open RL Conductor as a LlamaIndex LLM: it writes a workflow over other models and indexes, and runs it."""

from .base import Conductor
from .instrumentation import ConductorEvent
from .llm_model import LLMModel
from .lookups import QueryEngineModel, RetrieverModel
from .workers import pool_of

__all__ = ["Conductor", "ConductorEvent", "LLMModel", "QueryEngineModel", "RetrieverModel", "pool_of"]
