"""Runs workflows: rounds, steps in parallel, worker prompts, and the choice of the answer.

In: a conversation and a planner, or a workflow. Out: a `Trace`.
"""
