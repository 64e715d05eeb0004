"""Runs in the store: their rows, leases, sessions, feedback, experiments and audit records, and their deletion."""
