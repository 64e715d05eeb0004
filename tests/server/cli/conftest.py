"""The command line, and a service of models for it."""

from command_line import _bare_environment, cli, command, pool, running, service

__all__ = ["_bare_environment", "cli", "command", "pool", "running", "service"]
