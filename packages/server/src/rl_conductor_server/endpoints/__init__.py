"""Endpoints that look things up: models, runs, the administrator's, health."""
