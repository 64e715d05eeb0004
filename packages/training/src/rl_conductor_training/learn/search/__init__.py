"""The search for good workflows: candidates, measured costs, a plan that fits the caps, and exploration."""
