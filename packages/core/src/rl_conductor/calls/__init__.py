"""One model call: limits checked before it, deadline, retries, hedging, and a record of what happened.

In: a model and a request. Out: a completion, and a `Call` for the trace.
"""
