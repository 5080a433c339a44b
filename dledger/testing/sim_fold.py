"""The state machine of simulated groups that forget: as small as one can be that says what nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from crc32c import crc32c

from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, Index
from dledger.state_machine import SnapshotRefusedError

FORGETS_EVERY = 4
"""The first entry that is kept moves on with every so many entries, not with each."""


class SimFold:
    """Folds entries into a checksum, and keeps the last ones.

    Attributes:
        applied_index: the last entry that it contains.
        keep_from: the first entry that it needs.
    """

    def __init__(self, keep_entries: int) -> None:
        self.applied_index = NO_INDEX
        self.keep_from = Index(1)
        self._keep_entries = keep_entries
        self._checksum = 0

    def apply(self, entries: Sequence[Entry]) -> None:
        """Fold committed entries."""
        for entry in entries:
            assert entry.index == self.applied_index + 1, (
                f"entry {entry.index} after {self.applied_index}"
            )
            self.applied_index = entry.index
            self._checksum = int(crc32c(entry.header, self._checksum))
            if entry.index % FORGETS_EVERY == 0:
                self.keep_from = Index(max(self.keep_from, entry.index - self._keep_entries))

    def digest(self) -> int:
        """Return 32 bits over the whole state."""
        return int(crc32c(repr((self.applied_index, self.keep_from, self._checksum)).encode()))

    def snapshot(self) -> Iterator[bytes]:
        """Return the state in two chunks."""
        data = msgspec.msgpack.encode((self.applied_index, self.keep_from, self._checksum))
        return iter([data[:2], data[2:]])

    def restore(self, chunks: Iterator[bytes]) -> None:
        """Replace the state.

        Raises:
            SnapshotRefusedError: it is none.
        """
        self.applied_index, self.keep_from, self._checksum = NO_INDEX, Index(1), 0
        try:
            found = msgspec.msgpack.decode(b"".join(chunks), type=tuple[int, int, int])
        except msgspec.DecodeError as error:
            raise SnapshotRefusedError(str(error)) from error
        self.applied_index, self.keep_from = Index(found[0]), Index(found[1])
        self._checksum = found[2]
