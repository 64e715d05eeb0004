"""Small tools for this project's own packages: files, TOML, formatting, sync over async, intervals.

Nothing that a user imports; names may change in any release.
"""
