"""Runs code of models in a subprocess with limits on time, memory, files and system calls."""
