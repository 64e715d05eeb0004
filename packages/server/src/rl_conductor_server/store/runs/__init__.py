"""Runs in the store: their rows, leases, answers, feedback, experiments and audit records, and their deletion."""
