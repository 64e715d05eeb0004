"""Reports what logged model calls cost, for the command `audit-spend`."""
