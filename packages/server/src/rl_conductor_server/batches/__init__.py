"""Batches of requests: reads input files, and processes their items apart from the requests of the server's clients."""
