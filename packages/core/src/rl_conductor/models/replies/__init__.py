"""Checks and limits replies of every protocol, and separates reasoning from answers."""
