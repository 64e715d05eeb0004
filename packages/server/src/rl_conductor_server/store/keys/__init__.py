"""API keys, browser sessions and shares of budgets in the store."""
