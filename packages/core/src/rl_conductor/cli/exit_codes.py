"""The exit codes of the command line other than 0."""

from __future__ import annotations

FAILURE = 1
"""There is no answer, or a check found something."""
USAGE_ERROR = 2
"""The command or a file is invalid."""
INTERRUPTED = 130
TERMINATED = 143
"""By SIGTERM; both numbers are 128 and that of the signal."""
