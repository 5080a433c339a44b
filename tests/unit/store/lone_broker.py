"""A leader without a group: what is staged becomes a committed entry at once. For tests of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.store.control import Command
from broker.store.staging import StagedEntry, Staging
from broker.store.state import BrokerState
from dledger.errors import EntryDamagedError, OutOfRangeError
from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry, EntryKind
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger_mq.message.properties import encode_properties

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
BORN = bytes((127, 0, 0, 1)) + (50000).to_bytes(4, "big")
START_MS = 1_700_000_000_000


class FakeLog:
    """Entries back to back; implements LogReader and counts what readers fetch.

    Attributes:
        damaged: indexes of entries that the disk does not give.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)
        self.first_position = 0
        self.term = 1
        self.fetched = 0
        self.damaged: set[int] = set()

    @property
    def end_position(self) -> Position:
        return self.entries[-1].end_position if self.entries else Position(0)

    def entry_at(self, position: Position) -> Entry:
        self.fetched += 1
        for entry in self.entries:
            if entry.position <= position < entry.end_position:
                if position < self.first_position:
                    break
                if entry.index in self.damaged:
                    raise EntryDamagedError(f"entry {entry.index} is damaged on n0")
                return entry
        raise OutOfRangeError(position, self.first_position, self.end_position)

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        entry = self.entry_at(position)
        return BodySpan(Position(entry.position + ENTRY_HEADER_BYTES), entry.body)

    def views(self, runs: Sequence[tuple[int, int]], end: Position) -> Sequence[memoryview] | None:
        """Know nothing quickly: what reads from here is the ordinary way."""
        return None

    def stretches(
        self, starts: Sequence[int], sizes: Sequence[int], end: Position
    ) -> tuple[list[int], list[bytes | memoryview]]:
        """Know nothing quickly, either."""
        return [], []

    def append(self, body: bytes, kind: EntryKind = EntryKind.NORMAL, term: int = 0) -> Entry:
        term = term or self.term
        entry = Entry(Index(len(self.entries) + 1), Term(term), self.end_position, kind, body)
        self.entries.append(entry)
        return entry


def properties(**named: str) -> bytes:
    return encode_properties(named)


class LoneBroker:
    """Stages, commits and applies; the clock is set by hand."""

    def __init__(self, state: BrokerState | None = None, *, parses: bool = True) -> None:
        self.state = state or BrokerState()
        self.log = FakeLog()
        self.now_ms = START_MS
        self.staging = Staging(self.state, HOST)
        self._parses = parses
        self.log.append(b"", EntryKind.NOOP)
        self.state.apply(self.log.entries)

    def stage(
        self, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **named: str
    ) -> int:
        return self.staging.stage(
            topic.encode(),
            queue_id,
            body,
            properties(**named),
            born_timestamp_ms=self.now_ms - 1,
            born_host=BORN,
        )

    def commit(self) -> StagedEntry:
        """Make one entry of all that is staged, and apply it."""
        staged = self.staging.build_entry(self.log.end_position, self.now_ms)
        entry = self.log.append(staged.body)
        if not self._parses:
            self.staging.proposed(staged, EntryId(entry.term, entry.index))
        self.state.apply([entry])
        return staged

    def send(
        self, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **named: str
    ) -> StagedEntry:
        self.stage(topic, queue_id, body, **named)
        return self.commit()

    def command(self, command: Command) -> int:
        """Commit one control record; return its physical offset."""
        place = self.staging.stage_control(command, self.now_ms)
        return self.commit().physical_offset(place)
