"""Rewards and metrics of scored plans, for each step and for a run as a whole.

In: rollouts. Out: a reward for each plan, the metrics of a step, and the verdict on a run.
"""
