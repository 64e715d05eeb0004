"""Domains of learned workflows, and the ordinary requests that they are compared with."""
