"""The schema's migrations, oldest first."""
