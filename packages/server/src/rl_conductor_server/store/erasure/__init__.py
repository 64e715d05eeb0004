"""Erases the content and the users of runs before their time is over, in every table; usage and cost stay."""
