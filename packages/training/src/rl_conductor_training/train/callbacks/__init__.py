"""Callbacks of trainers: metrics, spending, complete checkpoints, and early stops such as Ctrl-C."""
