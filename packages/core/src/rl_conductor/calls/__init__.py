"""Model calls: budgets checked before each call, deadlines, retries, and a record of every attempt.

In: a model and a request. Out: a completion, and a `Call` for the trace.
"""
