"""Ends of a command that are no mistake of the caller's: what was asked for is not there, or nothing was changed."""

from __future__ import annotations


class NotThereError(Exception):
    """There is no such topic, group or message; nothing was changed."""


class UnchangedError(Exception):
    """A change was refused, or not confirmed with --yes: surely nothing was changed."""
