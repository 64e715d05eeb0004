"""Wordings of authors who knew none of the other templates, written before any planner was asked one of them."""
