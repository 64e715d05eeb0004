"""OpenAI and compatible servers: the adapter on the vendor's SDK, and the translation to and from chat completions."""
