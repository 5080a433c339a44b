"""One entry of the log, as the core, the store and the wire pass it on."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from dledger.raft.ids import EntryId, Index, Position, Term

ENTRY_HEADER_BYTES = 48
"""Size of the header in front of every body, on disk and on the wire (docs/formats/entry.md)."""


class EntryKind(IntEnum):
    """The kind of a body; the value is the magic of the entry header."""

    NORMAL = 1
    NOOP = 2
    CONFIGURATION = 3


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry with its body.

    Attributes:
        position: byte place of its header in the log; the body stands at position + 48.
        header: the 48 encoded bytes once the log has sealed it (chain and body CRC computed); empty
            before. Followers store the leader's header unchanged.
    """

    index: Index
    term: Term
    position: Position
    kind: EntryKind
    body: bytes
    header: bytes = b""

    @property
    def id(self) -> EntryId:
        """Term and index."""
        return EntryId(self.term, self.index)

    @property
    def size_bytes(self) -> int:
        """Bytes that the entry takes in the log, header included."""
        return ENTRY_HEADER_BYTES + len(self.body)

    @property
    def end_position(self) -> Position:
        """The byte place of the next entry's header. Positions have no gaps (docs/divergence.md)."""
        return Position(self.position + ENTRY_HEADER_BYTES + len(self.body))


class BodySpan(NamedTuple):
    """Bytes of one entry's body, and the position of the first of them in the log."""

    position: Position
    data: bytes | memoryview
