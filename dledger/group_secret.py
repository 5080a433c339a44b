"""The secret that members of a group and its log clients show each other; it may change while they run. Pure.

A group changes its secret without a stop, because more than one is accepted for a while (docs/members.md): each side
shows the first one that it has, and believes who shows any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger.errors import ConfigError

ACCEPTED_MAX: Final = 2
"""The one that goes and the one that comes; more would be forgotten there."""


class GroupSecret:
    """One secret that is shown, and at most one more that is accepted."""

    __slots__ = ("_accepted",)

    def __init__(self, *accepted: str) -> None:
        """Begin with these; the first is shown.

        Raises:
            ConfigError: there is none, one too many, or one is empty.
        """
        self._accepted = _checked(accepted)

    @classmethod
    def of(cls, secret: GroupSecret | str | None) -> GroupSecret | None:
        """Return a secret that is given as text or as one that may change; None: there is none.

        Raises:
            ConfigError: it is empty.
        """
        return cls(secret) if isinstance(secret, str) else secret

    @property
    def shown(self) -> str:
        """The one that this side proves to know."""
        return self._accepted[0]

    @property
    def accepted(self) -> tuple[str, ...]:
        """All that others may prove to know."""
        return self._accepted

    def change(self, accepted: Sequence[str]) -> None:
        """Go by others from now on; connections that are there stay.

        Raises:
            ConfigError: as for a new one; nothing has changed.
        """
        self._accepted = _checked(accepted)

    def __repr__(self) -> str:
        return f"<GroupSecret: {len(self._accepted)} accepted>"


def read_secrets(text: str) -> tuple[str, ...]:
    """Read a file of secrets: a line each, the shown one first; lines that are empty or begin with # are none.

    Raises:
        ConfigError: it holds none, or more than two; names no secret.
    """
    lines = [line.strip() for line in text.splitlines()]
    found = tuple(line for line in lines if line and not line.startswith("#"))
    if not found or (lines and not lines[0]):
        raise ConfigError("its first line is empty")
    return _checked(found)


def _checked(accepted: Sequence[str]) -> tuple[str, ...]:
    if not accepted or not all(accepted):
        raise ConfigError("the secret is empty; leave it out to run without one")
    if len(accepted) > ACCEPTED_MAX:
        raise ConfigError(
            f"{len(accepted)} secrets are given, at most {ACCEPTED_MAX} are accepted: the one that is shown, and one "
            "that goes or comes"
        )
    return tuple(accepted)
