"""OpenAI's Responses API: its request schema and its endpoint."""
