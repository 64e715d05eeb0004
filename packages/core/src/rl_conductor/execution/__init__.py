"""Runs workflows: rounds of planning, steps in parallel, and the selection of the answer.

In: a conversation and a planner, or a workflow. Out: a `Trace`.

`Run` is one request. For each round, `plan_source` decides where the plan comes from, `plan_delivery` yields it as a
stream of steps, and `RoundExecutor` starts each step as a `StepRun`, which calls its worker. They share a
`RoundContext`. In the end, `answer` selects the answer. `Stepwise` runs the steps of a plan that its host has stored.
"""
