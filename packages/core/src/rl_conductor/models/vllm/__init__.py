"""vLLM in this process."""
