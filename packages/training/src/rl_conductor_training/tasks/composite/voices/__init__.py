"""Wordings in four voices, by a language model that saw none of the other templates, before any planner saw them."""
