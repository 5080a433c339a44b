"""Judges: pure functions from a finished history to a result."""
