"""Chaos from outside: starts real processes, breaks them, records and judges what clients saw."""
