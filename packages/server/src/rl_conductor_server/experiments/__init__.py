"""Experiments on live traffic: shadow runs, canaries with guards, and judges."""
