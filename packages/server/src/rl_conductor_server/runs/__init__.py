"""Runs in flight: admission, requests, handles, claims and resumption."""
