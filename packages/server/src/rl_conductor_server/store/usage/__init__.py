"""Usage in the store: spending by worker, model and key, sums of whole days, and the bytes that each key stores."""
