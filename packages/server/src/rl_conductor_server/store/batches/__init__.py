"""Files and batches of requests: what clients upload, the queue of items, and their results."""
