"""The server's commands; they join `rl-conductor` through entry points."""
