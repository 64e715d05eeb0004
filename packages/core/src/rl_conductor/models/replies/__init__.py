"""Checks and limits of models' replies, whatever the protocol, and the separation of their reasoning."""
