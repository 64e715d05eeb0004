"""Choosing a worker or a learned workflow for a request without planning, from features of its text."""
