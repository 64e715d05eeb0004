"""Planning: the planner, later rounds, the router, filtering by capability, and fallback plans.

In: a conversation and a pool. Out: a `PlanRecord` with a valid workflow.
"""
