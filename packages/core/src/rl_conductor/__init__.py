"""The open RL Conductor."""
