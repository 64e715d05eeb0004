"""Rollouts: plans are sampled for the rows of a batch, executed by the workers, and their answers scored.

In: prompt instances and the policy. Out: a `Rollout` for each row. `scoring.py` and `batches.py` need no torch.
"""
