"""The web pages at `/`: runs, graphs, replays, experiments and spending, for administrators."""
