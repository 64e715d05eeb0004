"""Evaluates learners: whether there is room for them, which are promising, and which win on held-out questions."""
