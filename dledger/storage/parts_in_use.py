"""Parts of snapshots from which a state is served where they stand, so that a start need not read them (docs/adr/0253).

Before the first use of a part one of its two files is read whole, and must be what the snapshot names; from then on a
checksum is kept for each 8 KiB, and what is read must have it. So no byte is ever believed that could be another one
than was written. A file that is damaged is left for the other one, and the next snapshot writes the part anew. Where
both are, the part is lost: whoever wants it is told to ask again later, and `set_lost_aside` takes the names from its
files, so that the next start does not begin with a snapshot that names it. A file that cannot be read now, for want of
descriptors or memory, says nothing of its bytes.

As long as somebody holds a part its files stay, whatever the snapshots name.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from weakref import ReferenceType, WeakValueDictionary, ref

from crc32c import crc32c

from dledger.codec.snapshot import FRAME_HEAD_BYTES, PART_HEAD_BYTES, SnapshotFormatError
from dledger.errors import CorruptionError, EntryDamagedError
from dledger.state_machine import StoredPart
from dledger.storage.api import Disk, File
from dledger.storage.read_errors import is_damage, is_shortage, read_again
from dledger.storage.snapshot_parts import LOST_SUFFIX, damage_of, part_names, read_part_file

PAGE_BYTES: Final = 8192
"""Of the state; for so many a checksum is kept, four bytes."""

CHUNK_BYTES: Final = 256 * 1024

FILES_MAX: Final = 16
"""Files of parts that are kept open."""


@dataclass(frozen=True, slots=True)
class _Pages:
    """A file of a part that was read whole, and is what was written.

    Attributes:
        path: of the file.
        frames: where the bytes of each frame begin, among the state's in the part.
        crcs: CRC32C of each page.
    """

    path: str
    frames: array[int]
    crcs: array[int]

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where bytes of the state stand in the file: first byte, and how many."""
        frame = bisect_right(self.frames, start)
        while start < end:
            stop = min(end, self.frames[frame]) if frame < len(self.frames) else end
            yield PART_HEAD_BYTES + (frame + 1) * FRAME_HEAD_BYTES + start, stop - start
            start, frame = stop, frame + 1

    def check(self, data: bytes, first_page: int) -> None:
        """Verify whole pages.

        Raises:
            SnapshotFormatError: one is not what it was.
        """
        for at in range(0, len(data), PAGE_BYTES):
            page = first_page + at // PAGE_BYTES
            if crc32c(data[at : at + PAGE_BYTES]) != self.crcs[page]:
                raise SnapshotFormatError(page * PAGE_BYTES, "it is no longer what was verified")


class PartOnDisk:
    """One part; a `dledger.KeptPart`.

    Attributes:
        stored: as snapshots name it.
    """

    __slots__ = ("__weakref__", "_pages", "_parts", "stored")

    def __init__(self, parts: PartsInUse, stored: StoredPart) -> None:
        self.stored = stored
        self._parts = parts
        self._pages: _Pages | None = None

    @property
    def is_verified(self) -> bool:
        """True once a file of it was read whole."""
        return self._pages is not None

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes; see `dledger.KeptPart`."""
        size = self.stored.state_bytes
        for start in range(0, size, CHUNK_BYTES):
            yield self.read(start, min(CHUNK_BYTES, size - start))

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the state; see `dledger.KeptPart`."""
        try:
            return self._read(offset, size, self._parts.file)
        except CorruptionError as error:
            raise EntryDamagedError(
                f"what messages are looked up by is damaged: {error}"
            ) from error
        except OSError as error:
            if not is_shortage(error):
                raise
            raise EntryDamagedError(
                f"what messages are looked up by cannot be read now: {error}"
            ) from error

    def read_resident(self, offset: int, size: int) -> bytes | None:
        """Return bytes of the state that are in memory, and verified; see `dledger.KeptPart`."""
        pages = self._pages
        if pages is None:
            return None
        first, end = self._whole_pages(offset, size)
        pieces = []
        try:
            file = self._parts.file(pages.path)
            for at, count in pages.stretches(first, end):
                piece = file.read_resident(at, count)
                if piece is None:
                    return None
                pieces.append(bytes(piece))
            data = b"".join(pieces)
            pages.check(data, first // PAGE_BYTES)
        except (SnapshotFormatError, OSError):
            return None  # whoever reads it otherwise meets the same, and tells
        return data[offset - first : offset - first + size]

    def read_beside(self, offset: int, size: int) -> bytes:
        """Return bytes of the state, in any thread; see `dledger.KeptPart`."""
        opened: list[File] = []

        def open_own(path: str) -> File:
            opened.append(self._parts.disk.open(path))
            return opened[-1]

        try:
            return self._read(offset, size, open_own)
        except CorruptionError as error:
            raise OSError(errno.EIO, str(error), error.path) from error
        finally:
            for file in opened:
                file.close()

    def verify(self) -> None:
        """Read a file of the part whole, and the other one if that is damaged, in any thread.

        Raises:
            CorruptionError: both are damaged.
            OSError: it cannot be read now.
        """
        number = self.stored.number
        damage = self._parts.lost.get(number)
        for name in part_names(number) if damage is None else ():
            path = f"{self._parts.folder}/{name}"
            try:
                self._pages = read_again(partial(self._examine, path))
            except (SnapshotFormatError, OSError) as error:
                damage = damage_of(path, error)
                self._parts.damaged.add(number)
            else:
                return
        assert damage is not None, f"{self.stored} has no files"
        self._pages = None
        self._parts.lost[number] = damage
        raise damage

    def _examine(self, path: str) -> _Pages:
        """Read one file whole.

        Raises:
            SnapshotFormatError: it is not what was written.
            OSError: it cannot be read.
        """
        frames, crcs, size, rest = array("I"), array("I"), 0, b""
        for data in read_part_file(self._parts.disk.open, path, self.stored):
            if size:
                frames.append(size)
            size += len(data)
            rest += data
            whole = len(rest) - len(rest) % PAGE_BYTES
            crcs.extend(crc32c(rest[at : at + PAGE_BYTES]) for at in range(0, whole, PAGE_BYTES))
            rest = rest[whole:]
        if rest:
            crcs.append(crc32c(rest))
        return _Pages(path, frames, crcs)

    def _read(self, offset: int, size: int, file_of: Callable[[str], File]) -> bytes:
        """Return bytes of the state; what is not what it was leads to a new look at both files.

        Raises:
            CorruptionError: both are damaged.
            OSError: they cannot be read now.
        """
        assert 0 <= offset <= offset + size <= self.stored.state_bytes, (
            f"{size} bytes from {offset} on of {self.stored}"
        )
        first, end = self._whole_pages(offset, size)
        for _ in part_names(self.stored.number):
            if self._pages is None:
                self.verify()
            pages = self._pages
            assert pages is not None, "what was verified has pages"
            try:
                file = file_of(pages.path)
                data = b"".join(
                    [file.read_at(at, count) for at, count in pages.stretches(first, end)]
                )
                pages.check(data, first // PAGE_BYTES)
            except (SnapshotFormatError, OSError) as error:
                if isinstance(error, OSError) and not is_damage(error):
                    raise
                self._parts.damaged.add(self.stored.number)
                self._pages = None
            else:
                return data[offset - first : offset - first + size]
        path = f"{self._parts.folder}/{part_names(self.stored.number)[0]}"
        raise CorruptionError(path, first, "each read of it gives something else")

    def _whole_pages(self, offset: int, size: int) -> tuple[int, int]:
        """Return begin and end of the pages in which bytes of the state stand."""
        end = -(-(offset + size) // PAGE_BYTES) * PAGE_BYTES
        return offset - offset % PAGE_BYTES, min(end, self.stored.state_bytes)


class PartsInUse:
    """The parts of one store's snapshots that somebody holds. `file` and `hold` are for the state's owner.

    Attributes:
        disk, folder: where the parts are.
        damaged: numbers of parts of which a file is known to be damaged.
        lost: what is wrong with the second file of parts both of whose files are, by number.
    """

    def __init__(self, disk: Disk, folder: str, damaged: set[int]) -> None:
        self.disk = disk
        self.folder = folder
        self.damaged = damaged
        self.lost: dict[int, CorruptionError] = {}
        self._held: WeakValueDictionary[int, PartOnDisk] = WeakValueDictionary()
        self._unverified: deque[ReferenceType[PartOnDisk]] = deque()
        self._files: OrderedDict[str, File] = OrderedDict()

    def hold(self, stored: StoredPart) -> PartOnDisk:
        """Return a part, whose files stay as long as what is returned."""
        held = self._held.get(stored.number)
        if held is None or held.stored != stored:
            held = self._held[stored.number] = PartOnDisk(self, stored)
            self._unverified.append(ref(held))
        return held

    def give_up_all(self) -> None:
        """Forget the parts, and what is wrong with them: the start that held them goes on from another snapshot."""
        self.lost.clear()
        self._held.clear()
        self._unverified.clear()

    def is_held(self, number: int) -> bool:
        """Return whether somebody holds the part with this number."""
        return number in self._held

    def unverified(self) -> PartOnDisk | None:
        """Return a part that nobody has read whole yet, each once; None: there is none."""
        while self._unverified:
            part = self._unverified.popleft()()
            if part is not None and not part.is_verified:
                return part
        return None

    def put_back(self, part: PartOnDisk) -> None:
        """Have a part that could not be read given out by `unverified` again."""
        self._unverified.append(ref(part))

    def set_lost_aside(self) -> CorruptionError | None:
        """Take the names from the files of lost parts, as far as that can be done; return what is wrong with one part.

        After that their bytes come from nowhere: the owner must stop, and start anew. The files go with the last
        snapshot that names them; the device may have had a bad moment only.
        """
        lost = list(self.lost)
        for number in lost:
            for name in part_names(number):
                with suppress(OSError):
                    path = f"{self.folder}/{name}"
                    self.disk.rename(path, path + LOST_SUFFIX)
        if not lost:
            return None
        with suppress(OSError):
            self.disk.sync_folder(self.folder)
        return self.lost[lost[0]]

    def bring_back(self, stored: StoredPart) -> bool:
        """Give the names back to those files of a lost part that are what was written after all; return whether one is.

        The device had a bad moment: a node that is alone, and whose log has lost its beginning, has nothing else.

        Raises:
            OSError: they cannot be read now, or the names not be given back.
        """
        is_back = False
        for name in part_names(stored.number):
            path = f"{self.folder}/{name}"
            try:
                for _ in read_part_file(self.disk.open, path + LOST_SUFFIX, stored):
                    pass
            except (SnapshotFormatError, OSError) as error:
                damage_of(path, error)  # raises what is none
                continue
            self.disk.rename(path + LOST_SUFFIX, path)
            is_back = True
        if is_back:
            self.disk.sync_folder(self.folder)
        return is_back

    def file(self, path: str) -> File:
        """Return a file of a part, open. What was not used for longest is closed for it.

        Raises:
            OSError: it cannot be opened.
        """
        file = self._files.get(path)
        while file is None:
            if len(self._files) >= FILES_MAX:
                self._close_oldest()
            try:
                file = self._files[path] = self.disk.open(path)
            except OSError as error:
                if not (is_shortage(error) and self._files):
                    raise
                self._close_oldest()
        self._files.move_to_end(path)
        return file

    def _close_oldest(self) -> None:
        _, file = self._files.popitem(last=False)
        file.close()

    def close(self, number: int) -> None:
        """Close the files of a part that nobody holds: one that is removed takes room while it is open."""
        for name in part_names(number):
            file = self._files.pop(f"{self.folder}/{name}", None)
            if file is not None:
                file.close()
