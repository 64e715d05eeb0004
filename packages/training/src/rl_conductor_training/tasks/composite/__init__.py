"""Composite questions: an invented country, question templates about it, and the task made of them.

In: a split, a size and a seed. Out: a `Task`, and the passages that the reader worker searches.
"""
