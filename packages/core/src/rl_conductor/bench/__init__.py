"""The benchmark: systems side by side on the same samples, the same workers and the same account of what they spend."""
