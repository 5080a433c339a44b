"""A snapshot as one file without parts, which is how it goes to other members: older versions know no other form.

It is read and verified once, when the checksums of the frames are computed and the place of each frame's data is noted.
Then any part of the file can be given out, to several members at once, without the file being anywhere.

Nothing here knows which snapshots there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from dledger.codec.snapshot import (
    HEAD_BYTES,
    FrameChain,
    SnapshotFormatError,
    SnapshotMeta,
    encode_head,
)
from dledger.errors import CorruptionError
from dledger.storage.api import Disk
from dledger.storage.snapshot_parts import damage_of

GIVEN_BYTES_MAX = 256 * 1024
"""Sent to another member at once."""

PlacedBytes = tuple[tuple[str, ...], int, bytes]
"""Files any of which has the bytes, where they begin in each, and the bytes."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame of the file, or its head or end, which have no data.

    Attributes:
        start: byte of the file at which it begins.
        head: its first bytes.
        paths, offset, size_bytes: where its data is kept.
        crc_before: the CRC with which that of its data begins.
    """

    start: int
    head: bytes
    paths: tuple[str, ...] = ()
    offset: int = 0
    size_bytes: int = 0
    crc_before: int = 0


class WholeSnapshot:
    """One snapshot.

    Attributes:
        meta: what its head says.
        size_bytes: of the file.
    """

    def __init__(self, disk: Disk, meta: SnapshotMeta, data: Iterable[PlacedBytes]) -> None:
        """Read everything.

        Raises:
            CorruptionError: it is damaged.
            OSError: the disk failed.
        """
        self.meta = meta
        self._disk = disk
        head = encode_head(meta)
        chain = FrameChain(head)
        self._frames = [_Frame(0, head)]
        size = HEAD_BYTES
        for paths, offset, each in data:
            before = chain.crc
            frame = _Frame(size, chain.encode(each), paths, offset, len(each), before)
            self._frames.append(frame)
            size += len(frame.head) + len(each)
        end = chain.end()
        self._frames.append(_Frame(size, end))
        self._starts = [frame.start for frame in self._frames]
        self.size_bytes = size + len(end)

    def part(self, offset: int) -> bytes:
        """Return bytes of the file from a place on, verified once more; none beyond its end.

        Raises:
            CorruptionError: it was damaged or removed since it was read.
            OSError: the disk failed.
        """
        found = bytearray()
        number = bisect_right(self._starts, offset) - 1
        skipped = offset - self._starts[number]
        for frame in self._frames[number:]:
            found += frame.head + self._data(frame)
            if len(found) - skipped >= GIVEN_BYTES_MAX:
                break
        return bytes(found[skipped : skipped + GIVEN_BYTES_MAX])

    def _data(self, frame: _Frame) -> bytes:
        """Return a frame's data, from the first of its files that has it as it was."""
        damage: CorruptionError | None = None
        for path in frame.paths:
            try:
                data = self._read(path, frame)
                FrameChain.begun_after(frame.crc_before).check(frame.head, data, frame.offset)
            except SnapshotFormatError as error:
                damage = CorruptionError(path, frame.offset, error.problem)
            except OSError as error:
                damage = damage_of(path, error)
            else:
                return data
        if damage is not None:
            raise damage
        return b""

    def _read(self, path: str, frame: _Frame) -> bytes:
        file = self._disk.open(path)
        try:
            return file.read_at(frame.offset, frame.size_bytes)
        finally:
            file.close()
