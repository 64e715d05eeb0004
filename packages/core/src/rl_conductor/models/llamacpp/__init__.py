"""In-process llama.cpp: GGUF files, and small pinned models that are downloaded on first use."""
