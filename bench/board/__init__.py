"""A picture of docs/grafana-board.json with the figures of a run: a group, its clients, and what Prometheus answers.

Grafana is not among what Python or Debian install, so the panels are drawn here from the board's own expressions, as
Prometheus answers them. Nothing here knows what a figure means.
"""
