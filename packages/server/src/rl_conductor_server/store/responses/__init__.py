"""The Responses API in the store: its requests and answers, the pieces of its streams, and its conversations."""
