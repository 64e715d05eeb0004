"""Reports the cost of logged model calls, for the command `audit-spend`."""
