"""Runs workflows: rounds of planning, steps in parallel, and the selection of the answer.

In: a conversation and a planner, or a workflow. Out: a `Trace`.
"""
