"""LlamaIndex's LLMs, query engines, retrievers, agents and workflows as `Model`s of the core."""
