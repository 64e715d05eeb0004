"""Adapts conversations to the vendors of LangChain models, and keeps the parts that only their vendor reads."""
