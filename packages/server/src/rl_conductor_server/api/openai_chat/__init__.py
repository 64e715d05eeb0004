"""OpenAI's Chat Completions API: its request schema and its endpoint."""
