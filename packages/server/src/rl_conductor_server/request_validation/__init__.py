"""Validates request bodies: ignores fields without effect here, and formats errors with the path of the field."""
