"""`ChatConductor`, the chat model: from a call's messages and options to a run of the core, and back to a message."""

from langchain_conductor.chat.chat_conductor import ChatConductor

__all__ = ["ChatConductor"]
