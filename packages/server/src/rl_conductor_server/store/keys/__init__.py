"""API keys, sign-ins and shares of budgets in the store."""
