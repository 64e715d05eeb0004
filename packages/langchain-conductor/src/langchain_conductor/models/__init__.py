"""LangChain chat models and other runnables as `Model`s of the core, so that they can plan and work for a Conductor."""

from langchain_conductor.models.chat_model import ChatModel
from langchain_conductor.models.runnable_model import RunnableModel

__all__ = ["ChatModel", "RunnableModel"]
