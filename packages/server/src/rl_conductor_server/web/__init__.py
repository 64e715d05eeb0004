"""The web pages at `/`: runs, graphs, replays, routes and spending, for administrators."""
