"""State of the Responses API between requests: responses, their streams, conversations, and references to items."""
