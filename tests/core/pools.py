"""Pool files that the tests share."""

from __future__ import annotations

TRAINED = """
[planner]
model = "ollama:conductor"
form = "rows"
roster = "ordinals"
examples = 0
access = "positional"
steps = 3
max_tokens = 200
temperature = 0.0
samples = 2
timeout = 300
"""
"""A planner that is asked as it was trained."""
