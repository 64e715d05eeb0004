"""The pages at `/`: runs as they happen, one run drawn and told, spending, replays. For the administrator only."""
