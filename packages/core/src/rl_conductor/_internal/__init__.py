"""Utilities shared by this project's packages: files, TOML, formatting, sync bridges, confidence intervals.

Not part of the public API; names may change in any release.
"""
