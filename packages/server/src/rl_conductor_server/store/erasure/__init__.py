"""Erases runs before their time is over: what they say and whose they are, in every table; what they cost stays."""
