"""Wordings in eight voices, by a language model that saw none of the other templates, before any planner saw them.

Four are for training, and four for the held-out split; see `new_wordings`.
"""
