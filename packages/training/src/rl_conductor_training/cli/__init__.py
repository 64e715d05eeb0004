"""The training package's commands; they join `rl-conductor` through entry points."""
