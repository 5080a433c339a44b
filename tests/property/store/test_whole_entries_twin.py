"""Entries that compiled code folds as a whole, against Python's: the same state and columns, or nothing done."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from broker.store.consume_queue import ConsumeQueue
from broker.store.parse import find_shape, parse_records
from broker.store.recent_sends import SendColumns
from broker.store.record_shapes import Shape
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.unit_stores import UNIT, MemoryUnitStore
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger_mq.message import compiled
from tests.property.store.test_fold_laws import TIGHT, answers
from tests.stages import needs_compiled, stage
from tests.unit.store.lone_broker import BORN, HOST

pytestmark = needs_compiled

START_MS = 1_700_000_000_000
FIRST = 5048
LENGTHS = [1, 15, 31, 32, 128]
TOPICS = [b"T", b"TopicTest", b"U"]

Row = tuple[int, int, int, int]
rows = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4), st.integers(0, 2))
"""Topic, queue, length of the key, tag."""
logs = st.lists(
    st.tuples(
        st.lists(rows, min_size=1, max_size=30), st.sampled_from([0, 1, 200, 70_000]), st.booleans()
    ),
    min_size=1,
    max_size=5,
)


def properties_of(length: int, tag: int, number: int) -> bytes:
    key = b"%032d" % number * 4
    tags = b"TAGS\x01tag-%d\x02" % tag if tag else b""
    return b"%bUNIQ_KEY\x01%b\x02WAIT\x01true\x02" % (tags, key[-length:])


def log_of(steps: list[tuple[list[Row], int, bool]]) -> list[Entry]:
    """Entries of plain messages; some with a message more that has KEYS."""
    staging = Staging(BrokerState(), HOST)
    entries: list[Entry] = []
    position, now_ms, number = Position(0), START_MS, 0
    for some, pause_ms, has_keys in steps:
        now_ms += pause_ms
        for topic, queue_id, length, tag in some:
            number += 1
            texts = properties_of(LENGTHS[length], tag, number)
            staging.stage(
                TOPICS[topic],
                queue_id,  # type: ignore[arg-type]
                b"b" * (number % 3),
                texts,
                born_timestamp_ms=0,
                born_host=BORN,
            )
        if has_keys:
            texts = b"UNIQ_KEY\x01k%d\x02KEYS\x01a b\x02" % number
            staging.stage(b"T", 0, b"", texts, born_timestamp_ms=0, born_host=BORN)  # type: ignore[arg-type]
        body = staging.build_entry(position, now_ms).body
        entry = Entry(Index(len(entries) + 1), Term(1), position, EntryKind.NORMAL, body)
        entries.append(entry)
        position = entry.end_position
    return entries


@given(logs)
@example([([(0, 0, 3, 0)] * 20, 0, False)] * 3)
@example([([(0, 0, 4, 0)] * 300, 0, False)])
def test_a_log_is_folded_to_the_same_state(steps: list[tuple[list[Row], int, bool]]) -> None:
    log, found = log_of(steps), []
    for is_compiled in (True, False):
        with stage(is_compiled=is_compiled):
            for _ in range(2):  # the second time all shapes are known
                BrokerState(limits=TIGHT).apply(log)
            state = BrokerState(limits=TIGHT)
            state.apply(log)
            recent = state.recent_sends
            sends = [(key, recent.offsets(key)) for _, keys, _ in recent.entries() for key in keys]
            found.append((answers(state), b"".join(state.snapshot()), recent.dump(), sends))
    assert found[0] == found[1]


# One entry.


def shape_of(before: bytes, behind: bytes) -> Shape | None:
    """The shape of any record with keys of one length."""
    topic = before[1 : 1 + before[0]]
    has_keys = b"KEYS" in behind
    return topic, 32, 7 * len(behind), b"a b" if has_keys else None


class Queues:
    """Queues 0 to 3 of each topic, a special one, and what an entry is folded into."""

    def __init__(self, count: int = 4) -> None:
        self.by_key = {
            (topic, number): ConsumeQueue((topic, number), MemoryUnitStore())  # type: ignore[arg-type]
            for topic in TOPICS
            for number in range(count)
        }
        self.by_key[b"T", -1] = ConsumeQueue((b"T", -1), MemoryUnitStore(), special=True)  # type: ignore[arg-type]

    def fold(
        self, body: Any, *, first: int = FIRST, latest_ms: int = 5, find: Any = shape_of
    ) -> Any:
        with stage(is_compiled=True):
            return compiled.fold_entry(body, first, find, self.by_key, latest_ms)  # type: ignore[arg-type]

    def seen(self) -> list[object]:
        return [(q.key, q.max_offset, q.put_bytes, bytes(q.tail)) for q in self.by_key.values()]


def body_of(
    some: list[tuple[bytes, int]],
    *,
    key: str = "%032d",
    more: bytes = b"a\x01b\x02",
    first: int = FIRST,
    store_ms: int = START_MS,
) -> bytes:
    staging = Staging(BrokerState(), HOST)
    for number, (topic, queue_id) in enumerate(some):
        text = b"UNIQ_KEY\x01" + (key % number).encode() + b"\x02" + more
        staging.stage(topic, queue_id, b"body", text, born_timestamp_ms=0, born_host=BORN)  # type: ignore[arg-type]
    return staging.build_entry(Position(first - ENTRY_HEADER_BYTES), store_ms).body


queue_keys = st.tuples(st.sampled_from(TOPICS), st.integers(0, 3))


@given(
    st.lists(queue_keys, min_size=1, max_size=40),
    st.sampled_from([48, 127, 70_000, 2**32 - 300, 2**40]),
    st.sampled_from([5, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, START_MS]),
)
@example([(b"T", 0)] * 16, 48, 5)
@example([(b"T", 0)] * 70_000, 2**16, START_MS)
def test_the_columns_are_those_that_python_makes(
    some: list[tuple[bytes, int]], first: int, store_ms: int
) -> None:
    body = body_of(some, first=first, store_ms=store_ms)
    records, queues = parse_records(body, first), Queues()  # type: ignore[arg-type]
    found = queues.fold(body, first=first)
    keys, offsets = [record[6][1] or b"" for record in records], [record[2] for record in records]
    columns = SendColumns.of(keys, offsets, store_ms)  # type: ignore[arg-type]
    hashes = [
        crc32c(key, crc32c(record[0][0] + b"#")) for key, record in zip(keys, records, strict=True)
    ]
    units = [
        (number).to_bytes(4, "big") + at.to_bytes(8, "big") + store_ms.to_bytes(8, "big")
        for number, at in zip(hashes, offsets, strict=True)
    ]
    assert found == (
        len(records),
        store_ms,
        columns.last,
        b"".join(units),
        array("I", hashes).tobytes(),
        columns.texts,
        bytes(columns.hashed.cells),
        bytes(columns.hashed.tags),
        bytes(columns.hashed.lows),
        columns.row,
    )
    by_hand = Queues()
    for key, _, at, size, *_ in records:
        by_hand.by_key[key].append(at, size, 7 * len(b"a\x01b\x02"))
    assert queues.seen() == by_hand.seen()


PLAIN = [(b"T", 0), (b"U", 1), (b"T", 0)]
SOUND = body_of(PLAIN)
ODD: dict[str, dict[str, Any]] = {
    "nothing": {"body": b""},
    "no bytes": {"body": bytearray(SOUND)},
    "a part is missing": {"body": SOUND[:-1]},
    "a part too much": {"body": SOUND + b"x"},
    "another place": {"first": FIRST + 1},
    "no place": {"first": -1},
    "a later time before": {"latest_ms": START_MS + 1},
    "no time": {"latest_ms": -1},
    "two times": {
        "body": SOUND + body_of([(b"U", 0)], first=FIRST + len(SOUND), store_ms=START_MS + 1)
    },
    "KEYS": {"body": body_of(PLAIN, more=b"KEYS\x01a b\x02")},
    "a longer key": {"body": body_of(PLAIN, key="%033d")},
    "a key too long": {
        "body": body_of(PLAIN, key="%0129d"),
        "find": lambda *_: (b"T", 129, 7, None),
    },
    "no shape": {"find": lambda *_: None},
    "a queue that is not there": {"body": body_of([*PLAIN, (b"T", 4)])},
    "a special queue": {"find": lambda *_: (b"T", 32, 7, None), "special": True},
    "an offset that does not come next": {"offset": 1},
    "too many bytes": {"put_bytes": 2**63 - 200},
    "a hash beyond bounds": {"find": lambda *_: (b"T", 32, 2**63, None)},
    "more queues than it knows": {
        "body": body_of([(b"T", number) for number in range(257)]),
        "queues": 257,
    },
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_not_usual_is_declined_and_left(odd: dict[str, Any]) -> None:
    queues = Queues(odd.get("queues", 4))
    queue = queues.by_key[b"T", 0]  # type: ignore[index]
    queue.max_offset = odd.get("offset", queue.max_offset)
    queue.put_bytes = odd.get("put_bytes", 0)
    queue.special = odd.get("special", False)
    before = queues.seen()
    named = {name: odd[name] for name in ("first", "latest_ms", "find") if name in odd}
    assert queues.fold(odd.get("body", SOUND), **named) is None
    assert queues.seen() == before


def test_as_many_queues_as_it_knows_are_taken() -> None:
    queues = Queues(256)
    assert queues.fold(body_of([(b"T", number) for number in range(256)])) is not None
    assert [queues.by_key[b"T", number].max_offset for number in range(256)] == [1] * 256  # type: ignore[index]


def test_what_the_finder_raises_is_raised_and_nothing_is_folded() -> None:
    def fail(*_cut: bytes) -> Any:
        raise ZeroDivisionError

    queues = Queues()
    with pytest.raises(ZeroDivisionError):
        queues.fold(SOUND, find=fail)
    assert queues.seen() == Queues().seen()


def test_a_tail_that_somebody_reads_is_an_error() -> None:
    queues = Queues()
    queue = queues.by_key[b"T", 0]  # type: ignore[index]
    queue.tail += UNIT.pack(0, 0, 0)
    with memoryview(queue.tail), pytest.raises(BufferError):
        queues.fold(SOUND)


def test_a_leader_learns_the_shape_of_what_it_staged() -> None:
    staging = Staging(state := BrokerState(), HOST)
    text = b"leader\x01%d\x02UNIQ_KEY\x01%032d\x02a\x01b\x02" % (START_MS, 1)
    with stage(is_compiled=True):
        for number in range(1, 3):
            staging.stage(b"T", 0, b"body", text, born_timestamp_ms=0, born_host=BORN)  # type: ignore[arg-type]
            position = Position(1000 * number)
            staged = staging.build_entry(position, START_MS)
            entry = Entry(Index(number), Term(1), position, EntryKind.NORMAL, staged.body)
            staging.proposed(staged, entry.id)
            state.apply([entry])
        before = b"\x01T" + len(text).to_bytes(2, "big") + text.partition(b"UNIQ_KEY")[0]
        assert find_shape(before, b"a\x01b\x02") == (b"T", 32, 0, None)
    assert state.recent_sends.offsets(b"%032d" % 1) == (1048, 2048)
