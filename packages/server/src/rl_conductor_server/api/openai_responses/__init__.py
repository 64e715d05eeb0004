"""OpenAI's Responses API: its requests, responses and streams, and their state between requests."""
