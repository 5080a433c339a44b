"""What keeps a story from being told."""

from __future__ import annotations


class StoryError(Exception):
    """A store cannot tell what it was asked for; the text says why, and what may be concluded."""
