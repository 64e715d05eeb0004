"""Scorers: extract the answer from a reply and grade it, by text, number, value, tests or another model.

In: a `Sample` and the text of a reply. Out: a `Score` with the extracted answer and an explanation.
"""
