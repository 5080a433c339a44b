"""The errors that stop the fold, and one that must not. All else is folded, if only into a recorded refusal."""

from __future__ import annotations


class FoldError(Exception):
    """An entry that must not be skipped and cannot be folded: the node stops (docs/formats/control.md)."""


class OutOfOrderError(FoldError):
    """An entry was given twice, or one was left out."""


class MisplacedRecordError(FoldError):
    """A record says that it stands elsewhere, so the entry's body is not what its leader wrote."""


class NewerVersionError(FoldError):
    """A control record was written by a newer version.

    Refusing it here while others carry it out would part the replicas.
    """


class NoRoomError(Exception):
    """The disk has no room, or no file can be opened, for what should leave memory: it stays, and is offered again.

    The fold goes on, or a full disk would stop every replica at the same entry. What gathers is bounded by the log,
    which has no room to grow either.
    """
