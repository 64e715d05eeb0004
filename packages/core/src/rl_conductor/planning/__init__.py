"""From a request to a plan: the planner and its prompts, recursion, the router, and fallback plans.

In: a conversation and a pool. Out: a `PlanRecord` with a workflow that may run.
"""
