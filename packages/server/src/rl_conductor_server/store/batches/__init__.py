"""Files and batches of requests: uploads of clients, the queue of items, and their results."""
