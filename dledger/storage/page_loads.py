"""Pages of finished segments' indexes, read in any thread for look-ups that must not wait (docs/adr/0197).

A load is planned by the owner of the log, and what it has read is given back to the segment on the owner's thread. It
says nothing of damage: what it could not read, or is not what was verified, is not in memory afterwards, and whoever
looks it up then on the loop meets the damage and deals with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dledger.codec.index_unit import EntryColumns, IndexFormatError
from dledger.storage.examination import Finding
from dledger.storage.sealed_index import SealedIndex


@dataclass(slots=True)
class PageLoad:
    """Some pages of one segment's index, or the whole of it.

    Attributes:
        part: the segment's entries.
        wanted: numbers and checksums of the pages; None: nothing is known of them before the whole index was verified.
        pages: those that `run` has read, in order, up to the first that could not be.
        finding: what `run` has found of the whole index; None if it could not be read now.
    """

    part: SealedIndex
    wanted: Sequence[tuple[int, int]] | None
    pages: list[EntryColumns] = field(default_factory=list)
    finding: Finding | None = None

    def run(self) -> None:
        """Read and verify, in any thread."""
        examination = self.part.examination
        with suppress(OSError, IndexFormatError):
            if self.wanted is None:
                self.finding = examination.run()
                return
            file = examination.open()
            try:
                for number, crc in self.wanted:
                    self.pages.append(examination.read_page(file, number, crc))
            finally:
                file.close()

    @property
    def has_read(self) -> bool:
        """True if `run` has read what was wanted."""
        if self.wanted is None:
            return self.finding is not None
        return len(self.pages) == len(self.wanted)

    def put(self) -> None:
        """Keep the pages that were read."""
        for (number, crc), page in zip(self.wanted or (), self.pages, strict=False):
            self.part.put(number, page, crc)


def page_load(part: SealedIndex, numbers: Iterable[int] | None) -> PageLoad:
    """Plan the reading of some pages; None: of the whole index."""
    if numbers is None:
        return PageLoad(part, None)
    wanted = [(number, part.checksum(number)) for number in numbers]
    return PageLoad(part, [(number, crc) for number, crc in wanted if crc is not None])
