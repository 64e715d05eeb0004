"""Adapts conversations to the vendors of LangChain models, and keeps what only the model that wrote it understands."""
