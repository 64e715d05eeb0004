"""llama.cpp in this process: GGUF files of your own, and small pinned models whose weights are downloaded."""
