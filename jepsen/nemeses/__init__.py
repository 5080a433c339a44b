"""Faults, each with its cure."""
