"""What this machine and its files offer: discovery of keys, servers and models, pool files, profiles.

In: environment variables and TOML. Out: a planner, a pool, a policy and limits.
"""
