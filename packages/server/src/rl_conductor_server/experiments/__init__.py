"""Experiments on live traffic: shadow runs, canaries and their guards, judges, and audits of today's spend."""
