"""The exit codes of the command line other than 0."""

from __future__ import annotations

FAILURE = 1
"""There is no answer, or a check found something."""
USAGE_ERROR = 2
"""The command or a file is invalid."""
INTERRUPTED = 130
"""Ctrl-C: 128 plus the number of the signal."""
TERMINATED = 143
"""SIGTERM, likewise."""
