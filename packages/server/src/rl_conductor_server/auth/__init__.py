"""API keys, their budgets, and the rate limit on failed authentication."""
