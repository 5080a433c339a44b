"""The derived state as bytes of a snapshot, and back: in which order the components stand there.

The format is that of `saved.py` (docs/formats/snapshot.md). Nothing here decides when a snapshot is taken, or what
becomes of a state whose loading failed (broker/store/state.py).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import chain
from typing import Protocol

import msgspec

from broker.store import saved
from broker.store.consume_queue import ConsumeQueue, ConsumeQueues, units_to_keep
from broker.store.key_index import KeyIndex
from broker.store.pops import Pops
from broker.store.queue_gathering import QueueGathering, ranges_of
from broker.store.retention import Retention
from broker.store.saved import ByteSource, LargeTable, QueueRow, SavedTable, StateHead
from broker.store.timers import Timers
from broker.store.unit_stores import UNIT_BYTES
from dledger.raft.ids import Index
from dledger.state_machine import KeptPart, SealedPart, SnapshotRefusedError
from dledger_mq.message.numbers import StoreTimeMs


class SavedState(Protocol):
    """The part of `BrokerState` that a snapshot keeps."""

    applied_index: Index
    last_store_ms: StoreTimeMs
    put_count: int
    put_bytes: int
    queues: ConsumeQueues
    key_index: KeyIndex
    timers: Timers
    pops: Pops
    retention: Retention

    def tables(self) -> Mapping[str, SavedTable]:
        """Return the components that are kept whole, by the names of the format."""
        ...


class Gathering:
    """Gathers the state after one entry, in steps of some milliseconds: most of it while the fold goes on."""

    def __init__(self, state: SavedState) -> None:
        self._state = state
        self._queues = QueueGathering(state.queues)
        self._tables: dict[str, list[bytes]] = {}

    def beforehand(self) -> Iterator[None]:
        """Gather what is large; entries may be folded between the steps."""
        return self._queues.beforehand()

    def at_the_moment(self) -> Iterator[None]:
        """Gather what has changed since, and the tables; no entry is folded between the steps."""
        yield from self._queues.at_the_moment()
        for name, table in self._state.tables().items():
            parts = self._tables[name] = []
            for part in table.dump_parts() if isinstance(table, LargeTable) else [table.dump()]:
                parts.append(part)
                yield

    def parts(self) -> Iterator[bytes | SealedPart]:
        """Return the state as it is now; its units are read later, while the fold goes on."""
        state = self._state
        head = StateHead(
            saved.VERSION,
            state.applied_index,
            state.last_store_ms,
            state.put_count,
            state.put_bytes,
            msgspec.Raw(),
            state.key_index.row(),
            {},
        )
        return chain(
            saved.head_parts(head, self._queues.rows, self._tables),
            self._queues.units(),
            state.key_index.sealed_units(),
            state.timers.saved_units(),
        )


def load_steps(
    state: SavedState, source: ByteSource, *, resident_units_max: int, keep_units_max: int
) -> Generator[None, None, int]:
    """Fill an empty state, in short steps; of each queue, all but the newest units may leave memory on the way.

    Returns:
        the version in which the state was written.

    Raises:
        SnapshotRefusedError: the bytes are no state of this version; a part of them may be loaded.
        msgspec.DecodeError, UnicodeDecodeError: a table is none; the same holds.
    """
    assert not state.queues.by_key, f"the state has {len(state.queues.by_key)} queues already"
    (head_bytes,) = saved.LENGTH.unpack(source.read(saved.LENGTH.size))
    if head_bytes > saved.HEAD_BYTES_MAX:
        raise SnapshotRefusedError(f"the state's head has {head_bytes} bytes")
    parts = []
    for part in source.stream(head_bytes):
        parts.append(part)
        yield
    head_data = b"".join(parts)
    del parts
    yield
    head = saved.decode_head(head_data)
    yield
    for name, table in _tables_to_load(state, head).items():
        data = bytes(head.tables[name])
        if isinstance(table, LargeTable):
            yield from table.load_steps(data)
        else:
            table.load(data)
        yield
    rows = saved.split_rows(head.queues)
    yield
    keep = units_to_keep(len(rows), resident_units_max, keep_units_max)
    for row in rows:
        yield from _load_queue(state, saved.decode_row(row), source, keep)
    yield from state.queues.sort_steps()
    state.queues.forget(state.retention.position)
    for name, position in state.retention.topics.items():
        state.queues.hide(name, position)
    yield from state.key_index.load_steps(head.key_index, source)
    yield from state.timers.load_unit_steps(source)
    source.check_end()
    state.last_store_ms = head.last_store_ms
    state.put_count, state.put_bytes = head.put_count, head.put_bytes
    state.applied_index = head.applied_index
    return head.v


def _tables_to_load(state: SavedState, head: StateHead) -> dict[str, SavedTable]:
    """Return the tables that a state of this version or the one before has.

    Raises:
        SnapshotRefusedError: the head has others.
    """
    tables: dict[str, SavedTable] = dict(state.tables())
    if "pops" in head.tables:
        tables["pops"] = state.pops
    if head.v == saved.VERSION_BEFORE:
        del tables["settings"]  # an empty state has none
    if tables.keys() != head.tables.keys():
        raise SnapshotRefusedError(f"the state has the tables {', '.join(sorted(head.tables))}")
    return tables


def _load_queue(state: SavedState, row: QueueRow, source: ByteSource, keep: int) -> Iterator[None]:
    """Begin a queue, and return the reading of its units.

    Raises:
        SnapshotRefusedError: there cannot be such a queue.
    """
    key = (row.topic, row.queue_id)
    if key in state.queues.by_key or row.min_offset > row.max_offset:
        raise SnapshotRefusedError(f"queue {row.topic!r}, {row.queue_id} cannot be")
    queue = state.queues.create(key)
    return queue.load_steps(row, _units_of(state.queues, queue, row, source), keep)


def _units_of(
    queues: ConsumeQueues, queue: ConsumeQueue, row: QueueRow, source: ByteSource
) -> Iterator[bytes | KeptPart]:
    """Yield the units of a row, and those that are kept as parts as such."""
    step = queues.sealed_units
    for first, stop in ranges_of(row.min_offset, row.max_offset, step):
        size = (stop - first) * UNIT_BYTES
        kept = source.kept_part(size) if stop - first == step else None
        if kept is not None:
            queues.seal(queue, first, kept)
            yield kept
        else:
            yield from source.stream(size)
