"""Endpoints for models, runs, administration, health and metrics; `api` has those that answer requests."""
