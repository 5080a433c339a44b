"""The ends of RocketMQ's consume queues: the offset that the next message of each queue gets.

The commit log alone does not tell it: a queue whose messages were all deleted still goes on where it was. A queue's
files have units of 20 bytes, the first that is zero ends it. Nothing here knows which queues count.
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from broker.importing.commit_log import is_file_name
from broker.importing.errors import SourceError
from broker.store.unit_stores import QueueKey
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset

_QUEUE_NAME: Final = re.compile(r"[0-9]{1,9}")
_UNIT: Final = struct.Struct(">qiq")


class KnownQueue(NamedTuple):
    """A consume queue as RocketMQ knows it.

    Attributes:
        max_offset: of the next message.
        end_offset: where the record of its last message ends in the commit log; 0 if there is no unit.
        last_tag: the last unit's tag hash, of a delayed message the time at which it is due.
    """

    max_offset: QueueOffset
    end_offset: PhysicalOffset
    last_tag: int = 0


def read_queues(folder: Path) -> dict[QueueKey, KnownQueue]:
    """Return all queues of a folder `consumequeue`; none if there is no such folder.

    Raises:
        SourceError: a file cannot be read, or is cut.
    """
    if not folder.is_dir():
        return {}
    try:
        return {key: _read_queue(path) for key, path in _queue_folders(folder)}
    except OSError as error:
        raise SourceError(f"{error.filename}: {error.strerror}") from error


def _queue_folders(folder: Path) -> Iterator[tuple[QueueKey, Path]]:
    for topic in sorted(folder.iterdir()):
        if not topic.is_dir():
            continue
        for queue in sorted(topic.iterdir()):
            if _QUEUE_NAME.fullmatch(queue.name) and queue.is_dir():
                yield (os.fsencode(topic.name), QueueId(int(queue.name))), queue


def _read_queue(folder: Path) -> KnownQueue:
    """Look at the last file that has units. Which units are there is found by bisection: all of them stand first."""
    names = [p for p in folder.iterdir() if is_file_name(p.name)]
    for path in sorted(names, reverse=True):
        with path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            file_bytes = os.fstat(descriptor).st_size
            _check_whole(path, file_bytes, is_only=len(names) == 1)
            units = range(file_bytes // _UNIT.size)

            def is_empty(unit: int, descriptor: int = descriptor) -> bool:
                physical_offset, size, _ = _unit_at(descriptor, unit)
                return physical_offset < 0 or size <= 0

            count = bisect_left(units, True, key=is_empty)
            if count:
                physical_offset, size, tag = _unit_at(descriptor, count - 1)
                max_offset = QueueOffset(int(path.name) // _UNIT.size + count)
                is_filler = size == 2**31 - 1
                end = 0 if is_filler else physical_offset + size
                return KnownQueue(max_offset, PhysicalOffset(end), tag)
    first = min((int(path.name) for path in names), default=0)
    return KnownQueue(QueueOffset(first // _UNIT.size), PhysicalOffset(0))


def _check_whole(path: Path, file_bytes: int, *, is_only: bool) -> None:
    """Refuse a file that lost its end, and with it where the queue ends: RocketMQ makes all of them at their full size.

    A crash may leave a next file that is empty; a queue whose only file is so has lost it.

    Raises:
        SourceError: it is cut.
    """
    if file_bytes % _UNIT.size or (is_only and not file_bytes):
        raise SourceError(
            f"{path}: it is cut, {file_bytes} bytes are no file of units of {_UNIT.size} bytes each: where the queue "
            "ends is not known, and the next message could get an offset that another one has had"
        )


def _unit_at(descriptor: int, unit: int) -> tuple[int, int, int]:
    data = os.pread(descriptor, _UNIT.size, unit * _UNIT.size)
    found: tuple[int, int, int] = _UNIT.unpack(data.ljust(_UNIT.size, b"\0"))
    return found
