"""Planning: the planner and its prompts, recursion, the router, and fallback plans.

In: a conversation and a pool. Out: a `PlanRecord` with a valid workflow.
"""
