"""In-process vLLM engines, shared by models with the same options."""
