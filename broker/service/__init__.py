"""Requests and state to decisions, without I/O."""
