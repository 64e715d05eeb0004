"""Trains the classifiers that the core routes requests with: routers, workflow selectors and domains."""
