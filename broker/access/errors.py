"""What is raised about access rules."""

from __future__ import annotations


class AccessRulesError(ValueError):
    """Rules that cannot be read, or cannot hold; says where and why, and never a secret."""
