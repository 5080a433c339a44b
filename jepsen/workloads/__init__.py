"""Workloads: what clients do, and the abstract model that judges it."""
