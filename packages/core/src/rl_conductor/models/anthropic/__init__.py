"""Anthropic's models: the adapter on the vendor's SDK, and the translation to and from the Messages API."""
