"""Production runs with feedback as questions and rows of experience."""
