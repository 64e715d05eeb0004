"""Experiments on live traffic: shadow runs, canaries with guards, judges; and the audit of logged spending."""
