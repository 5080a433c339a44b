"""The snapshots in a folder that is another process's, or nobody's: listed and read, nothing swept away.

A member removes old ones meanwhile, so one that was listed may be gone; whoever reads it then takes another.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.codec.snapshot import HEAD_BYTES, FrameChain, SnapshotFormatError, decode_head
from dledger.raft.ids import Index
from dledger.state_machine import StoredPart
from dledger.storage.api import Disk
from dledger.storage.scan import ChainEnd
from dledger.storage.segment import SEGMENT_NAME_DIGITS
from dledger.storage.snapshot_parts import damage_of, read_frames, read_part
from dledger.storage.snapshots import SNAPSHOTS_FOLDER, SnapshotFile


def end_of(snapshot: SnapshotFile) -> ChainEnd:
    """Return the last entry that a snapshot contains."""
    meta = snapshot.meta
    return ChainEnd(meta.index, meta.term, meta.position, meta.chain_crc)


def snapshots_newest_first(disk: Disk) -> list[SnapshotFile]:
    """Return the snapshots of a store whose heads are good.

    Raises:
        OSError: the disk failed.
    """
    found: list[SnapshotFile] = []
    for name in reversed(disk.list(SNAPSHOTS_FOLDER)):
        if len(name) != SEGMENT_NAME_DIGITS or not (name.isascii() and name.isdigit()):
            continue
        path = f"{SNAPSHOTS_FOLDER}/{name}"
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            meta = decode_head(file.read_at(0, HEAD_BYTES))
            if meta.index == Index(int(name)):
                found.append(SnapshotFile(path, meta, file.size()))
        except SnapshotFormatError:
            continue  # the log, or an older one, tells the same
        finally:
            file.close()
    return found


def state_chunks(disk: Disk, snapshot: SnapshotFile) -> Iterator[bytes]:
    """Yield the state's bytes, each frame verified before it is given out, those of parts at their place.

    Raises:
        CorruptionError: it is damaged, or was removed meanwhile.
    """
    try:
        file = disk.open(snapshot.path)
        try:
            chain = FrameChain(file.read_at(0, HEAD_BYTES))
            for data in read_frames(file, chain, HEAD_BYTES):
                if isinstance(data, StoredPart):
                    yield from read_part(disk.open, SNAPSHOTS_FOLDER, data, set())
                else:
                    yield data
        finally:
            file.close()
    except (SnapshotFormatError, OSError) as error:
        raise damage_of(snapshot.path, error) from error
