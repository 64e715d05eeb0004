"""Anthropic's Messages API: its request schema and its endpoint."""
