"""The derived state that a node keeps, read while it may be running: nothing here writes.

Snapshots hold the whole state after one entry. The files of consume queues and of the key index hold what left
the memory of the node; they are not synced, wiped at each start, and read by that node alone, so they are
compared only as far as they go.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from broker.store.consume_queue import ConsumeQueue
from broker.store.state import BrokerState
from broker.store.unit_files import DERIVED, QUEUE_FILE_BYTES, folder_name
from broker.store.unit_stores import UNIT_BYTES
from dledger.codec.snapshot import (
    FRAME_HEAD_BYTES,
    HEAD_BYTES,
    FrameChain,
    SnapshotFormatError,
    SnapshotMeta,
    decode_head,
    named_part,
)
from dledger.errors import CorruptionError
from dledger.raft.ids import Position
from dledger.state_machine import SnapshotRefusedError, StoredPart
from dledger.storage.snapshot_parts import read_part
from dledger_mq.message.numbers import QueueOffset
from pipeline.derived.compare import Difference, first_byte
from pipeline.errors import PipelineError
from pipeline.scan.stores import Store

NO_UNIT: Final = bytes(UNIT_BYTES)


class DamagedSnapshotError(PipelineError):
    """A snapshot is not what was written; names file and byte."""


def snapshots_of(store: str | Path) -> list[tuple[Path, SnapshotMeta]]:
    """Return the snapshots in a store, oldest first.

    Raises:
        DamagedSnapshotError: the head of one is damaged.
    """
    folder = Path(store) / "snapshots"
    names = sorted(
        each for each in (folder.iterdir() if folder.is_dir() else ()) if each.name.isdigit()
    )
    found: list[tuple[Path, SnapshotMeta]] = []
    for path in names:
        try:
            with path.open("rb") as file:
                found.append((path, decode_head(file.read(HEAD_BYTES))))
        except FileNotFoundError:
            continue  # a newer one took its place
        except SnapshotFormatError as error:
            raise DamagedSnapshotError(f"{path}, {error}") from error
    return found


def load_snapshot(path: Path) -> BrokerState | None:
    """Load the state in a snapshot, every checksum verified; None when its node has removed it meanwhile.

    Raises:
        DamagedSnapshotError: it is damaged, or no state.
    """
    state = BrokerState()
    try:
        with path.open("rb") as file:
            state.restore(_state_chunks(path.parent, file))
    except FileNotFoundError:
        return None
    except (SnapshotFormatError, SnapshotRefusedError, CorruptionError) as error:
        if not path.exists():
            return None  # its parts were removed with it
        raise DamagedSnapshotError(f"{path}, {error}") from error
    return state


def _state_chunks(folder: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the state's bytes, those of parts from their files, of which there are two."""
    for data in _frames(file):
        if isinstance(data, bytes):
            yield data
        else:
            yield from read_part(_FileForReading, str(folder), data, set())


class _FileForReading:
    """A file of a store, which may be a running node's."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        os.close(self._descriptor)


def _frames(file: BinaryIO) -> Iterator[bytes | StoredPart]:
    """Yield what each frame carries, verified."""
    chain, offset = FrameChain(file.read(HEAD_BYTES)), HEAD_BYTES
    while True:
        head = file.read(FRAME_HEAD_BYTES)
        length = chain.length(head, offset)
        data = file.read(length)
        chain.check(head, data, offset)
        offset += FRAME_HEAD_BYTES + length
        if not length:
            return
        yield named_part(head, data) or data


def queue_file_differences(
    store: str | Path, folded: BrokerState, end_position: Position
) -> tuple[list[Difference], int]:
    """Compare consume queue files with a state, each as far as both go; also returns how many bytes were equal.

    The first difference of each queue is given.

    Args:
        store: of the node, which may have gone on meanwhile.
        folded: what follows from its log up to some entry.
        end_position: where that entry ends; queues that were made after it, or made anew, are left out.
    """
    root = Path(store) / DERIVED / "consumequeue"
    by_folder = {
        (folder_name(key[0]), str(key[1])): queue for key, queue in folded.queues.by_key.items()
    }
    found: list[Difference] = []
    equal_bytes = 0
    for folder in sorted(root.glob("*/*")) if root.is_dir() else ():
        queue = by_folder.get((folder.parent.name, folder.name))
        if end_position <= _first_position(folder) < _log_end(store):
            continue
        if queue is None:
            found.append(Difference("queues", str(folder), "no such queue", "files"))
            continue
        difference, size = _compare_queue(folder, queue)
        equal_bytes += size
        found += [difference] if difference else []
    return found, equal_bytes


def _unit_files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob("*") if each.name.isdigit())


def _content(path: Path) -> bytes:
    """Return the content of a file; nothing if its node has removed it, as it does with a topic's, and at its start."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _first_position(folder: Path) -> int:
    """Position in the log of a queue's first unit that is in a file; -1 if there is none."""
    for path in _unit_files(folder)[:1]:
        content = _content(path)
        for _, stretch in _stretches(content):
            return int.from_bytes(stretch[:8], "big")
    return -1


def _stretches(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the whole units of a file, those that stand together at once, with their first byte.

    Zeros stand where units are elsewhere, in a part of the snapshot with which the node has started: no unit is zero.
    """
    start, end = 0, len(content) - len(content) % UNIT_BYTES
    while start < end:
        unit = next(
            (
                at
                for at in range(start, end, UNIT_BYTES)
                if content[at : at + UNIT_BYTES] != NO_UNIT
            ),
            end,
        )
        hole = content.find(NO_UNIT, unit)
        while hole >= 0 and hole % UNIT_BYTES:
            hole = content.find(NO_UNIT, hole + 1)
        start = end if hole < 0 else min(hole, end)
        if unit < start:
            yield unit, content[unit:start]


def _log_end(store: str | Path) -> int:
    """Return a position that no record of the store stands beyond, whatever was written meanwhile."""
    last = Store(store).segments[-1]
    return last.first_position + last.size_bytes()


def _compare_queue(folder: Path, queue: ConsumeQueue) -> tuple[Difference | None, int]:
    """Compare unit files as far as file and queue both go: the node may be writing, and may have written more.

    What the queue has forgotten may still stand in the file with its first unit.
    """
    equal_bytes = 0
    for path in _unit_files(folder):
        for at, stretch in _stretches(_content(path)[:QUEUE_FILE_BYTES]):
            difference, size = _compare_stretch(path, at, stretch, queue)
            if difference is not None:
                return difference, equal_bytes
            equal_bytes += size
    return None, equal_bytes


def _compare_stretch(
    path: Path, at: int, kept: bytes, queue: ConsumeQueue
) -> tuple[Difference | None, int]:
    """Compare units that stand together in a file from a byte on; also returns how many bytes were equal."""
    start = (int(path.name) + at) // UNIT_BYTES
    first = QueueOffset(max(start, queue.held_first))
    count = min(start + len(kept) // UNIT_BYTES, queue.max_offset) - first
    if count <= 0:
        return None, 0
    skipped = (first - start) * UNIT_BYTES
    kept = kept[skipped : skipped + count * UNIT_BYTES]
    wanted = bytes(queue.units(first, count, with_held=True))
    place = first_byte(wanted, kept)
    if place is None:
        return None, len(kept)
    unit = place - place % UNIT_BYTES
    where = f"{path}, byte {at + skipped + place} (queue offset {first + place // UNIT_BYTES})"
    units = (each[unit : unit + UNIT_BYTES].hex() for each in (wanted, kept))
    return Difference("queues", where, *units), 0


def index_file_differences(store: str | Path, rebuilt: str | Path) -> tuple[list[Difference], int]:
    """Compare full segments of the key index with those that a fold wrote into another folder."""
    found: list[Difference] = []
    equal_bytes = 0
    root = Path(store) / DERIVED / "keyindex"
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        twin = Path(rebuilt) / "keyindex" / path.name
        if not twin.exists():
            continue  # made of what is beyond the bound, or of another size
        kept, wanted = _content(path), twin.read_bytes()
        if not kept:
            continue
        place = first_byte(wanted, kept)
        if place is None:
            equal_bytes += len(kept)
            continue
        found.append(
            Difference(
                "key_index",
                f"{path}, byte {place}",
                wanted[place : place + 8].hex() or "its end",
                kept[place : place + 8].hex() or "its end",
            )
        )
    return found, equal_bytes
