"""Configuration: discovery of API keys, local servers and pool files, learned folders, and profiles.

In: environment variables and TOML. Out: a planner, a pool, a policy and limits.
"""
