"""Compiled code in the fold, against Python's: the same answers, units, columns and chains, or nothing done."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.store import chained_sends
from broker.store.chained_sends import CELLS, NUMBERS, ChainedSends, ChainedTable, HashedKeys
from broker.store.consume_queue import ConsumeQueue
from broker.store.entry_keys import EntryKeys
from broker.store.parse import ParsedRecord
from broker.store.state import BrokerState
from broker.store.unit_stores import MemoryUnitStore, QueueKey
from dledger_mq.message import compiled
from tests.property.store.scripts import History, histories, log_of
from tests.property.store.test_entry_keys_twin import log_of as log_of_messages
from tests.property.store.test_entry_keys_twin import logs
from tests.property.store.test_fold_laws import TIGHT, answers
from tests.stages import examples, needs_compiled, stage

pytestmark = needs_compiled

LATEST_MS = 1000
START = 2**33
QUEUE_COUNT = 200
"""More than the compiled code knows at a time."""


@pytest.mark.slow
@given(histories)
def test_a_log_is_folded_to_the_same_state(history: History) -> None:
    log = log_of(history)
    for limits in ({}, {"limits": TIGHT}):
        states = [BrokerState(**limits), BrokerState(**limits)]  # type: ignore[arg-type]
        for state, is_compiled in zip(states, (True, False), strict=True):
            with stage(is_compiled=is_compiled):
                for _ in range(2):  # the second time all shapes are known
                    BrokerState().apply(log)
                state.apply(log)
        assert answers(states[0]) == answers(states[1])
        assert b"".join(states[0].snapshot()) == b"".join(states[1].snapshot())


@pytest.mark.slow
@given(logs)
def test_records_of_any_time_and_place_are_folded_to_the_same_state(
    messages: list[list[tuple[bytes, bytes, bytes, int, int, int]]],
) -> None:
    log, found = log_of_messages(messages), []
    for is_compiled in (True, False):
        with stage(is_compiled=is_compiled):
            BrokerState().apply(log)
            state = BrokerState()
            state.apply(log)
            found.append((answers(state), b"".join(state.snapshot())))
    assert found[0] == found[1]


# Records, one by one.


class Queues:
    """Queues that begin at some offset, by their keys, and the columns of one entry's keys."""

    def __init__(self, count: int = QUEUE_COUNT) -> None:
        self.by_key: dict[QueueKey, ConsumeQueue] = {}
        self.keys = EntryKeys([], [], [], [], [])
        for number in range(count):
            self.add(number)

    def add(self, number: int, *, special: bool = False) -> None:
        key: QueueKey = (b"T%d" % (number % 3), number)  # type: ignore[assignment]
        queue = self.by_key[key] = ConsumeQueue(key, MemoryUnitStore(), special=special)
        queue.max_offset = queue.tail_first = START  # type: ignore[assignment]

    def fold(self, records: list[Any], latest_ms: int = LATEST_MS) -> int | None:
        keys = self.keys
        return compiled.fold_usual(
            records,
            self.by_key,
            latest_ms,
            keys.texts,
            keys.seeds,
            keys.offsets,
            keys.add_others,  # type: ignore[arg-type]
        )

    def fold_by_hand(self, records: list[ParsedRecord]) -> None:
        for key, _, physical_offset, size, _, _, (tag_hash, uniq_key, more) in records:
            queue = self.by_key[key]
            queue.append(physical_offset, size, tag_hash)
            if uniq_key is not None:
                self.keys.texts.append(uniq_key)
                self.keys.seeds.append(queue.key_seed)
                self.keys.offsets.append(physical_offset)
            if more is not None:
                self.keys.add_others(more, queue.key_seed, physical_offset)

    def seen(self) -> object:
        rows = [(q.key, q.max_offset, q.put_bytes, bytes(q.tail)) for q in self.by_key.values()]
        return rows, self.keys


def key_of(number: int) -> QueueKey:
    """A key of its own, which is equal to that of the queue and not the same."""
    return (b"T%d" % (number % 3), int(str(number)))  # type: ignore[return-value]


rows = st.tuples(
    st.integers(0, 3) | st.integers(0, QUEUE_COUNT - 1),
    st.sampled_from([0, 1, 2**40, 2**63 - 1]),
    st.sampled_from([91, 2**31 - 1]),
    st.sampled_from([-5, 0, LATEST_MS]),
    st.sampled_from([0, -(2**31), 2**31 - 1]),
    st.sampled_from([None, b"", b"key", b"k" * 300]),
    st.sampled_from([None, None, b"", b"a", b"a b"]),
)


def records_of(some: list[Any]) -> list[Any]:
    """Usual records: each comes next in its queue."""
    ends: dict[int, int] = {}
    records = []
    for number, physical_offset, size, store_ms, tag_hash, uniq_key, more in some:
        queue_offset = ends.setdefault(number, START)
        ends[number] += 1
        properties = (tag_hash, uniq_key, more)
        records.append(
            (key_of(number), queue_offset, physical_offset, size, store_ms, False, properties)
        )
    return records


@given(st.lists(rows, max_size=30))
@example([(number % QUEUE_COUNT, 1, 91, 0, 0, b"k", None) for number in range(3 * QUEUE_COUNT)])
@example([(number * 7 % 150, 1, 91, 0, 0, b"k", None) for number in range(900)])
def test_usual_records_become_the_same_units_and_columns(some: list[Any]) -> None:
    records = records_of(some)
    fast, by_hand = Queues(), Queues()
    with stage(is_compiled=True):
        assert fast.fold(records) == len(records)
    by_hand.fold_by_hand(records)
    assert fast.seen() == by_hand.seen()


FINE = (key_of(1), START + 1, 5, 91, 0, False, (0, b"k", None))
UNUSUAL: list[Any] = [
    5,
    (),
    (*FINE, 1),
    list(FINE),
    (key_of(QUEUE_COUNT), *FINE[1:]),
    (key_of(QUEUE_COUNT + 1), *FINE[1:]),
    (FINE[0], START, *FINE[2:]),
    (FINE[0], START + 2, *FINE[2:]),
    (FINE[0], "1", *FINE[2:]),
    (FINE[0], 2**64, *FINE[2:]),
    (*FINE[:2], 2**63, *FINE[3:]),
    (*FINE[:2], -(2**63) - 1, *FINE[3:]),
    (*FINE[:2], None, *FINE[3:]),
    (*FINE[:3], 2**31, *FINE[4:]),
    (*FINE[:3], -1, *FINE[4:]),
    (*FINE[:4], LATEST_MS + 1, *FINE[5:]),
    (*FINE[:4], 2**63, *FINE[5:]),
    (*FINE[:5], True, FINE[6]),
    (*FINE[:5], 0, FINE[6]),
    (*FINE[:6], None),
    (*FINE[:6], (0, b"k")),
    (*FINE[:6], [0, b"k", None]),
    (*FINE[:6], (2**63, b"k", None)),
    (*FINE[:6], (None, b"k", None)),
]


@pytest.mark.parametrize("odd", UNUSUAL, ids=repr)
def test_what_is_not_usual_ends_it_and_is_not_folded(odd: Any) -> None:
    first = (key_of(1), START, 3, 100, 0, False, (7, b"first", b"a b"))
    fast, by_hand = Queues(), Queues()
    for queues in (fast, by_hand):
        queues.add(QUEUE_COUNT + 1, special=True)
    with stage(is_compiled=True):
        assert fast.fold([first, odd, FINE]) == 1
        by_hand.fold_by_hand([first])  # type: ignore[list-item]
        assert fast.seen() == by_hand.seen()
        assert fast.fold([FINE]) == 1


def test_a_queue_whose_numbers_are_beyond_bounds_is_not_usual() -> None:
    for name in ("max_offset", "put_bytes"):
        for beyond in (-1, 2**63 - 1, 2**64):
            queues = Queues()
            queue = queues.by_key[key_of(1)]
            setattr(queue, name, beyond)
            with stage(is_compiled=True):
                record = (key_of(1), queue.max_offset, *FINE[2:])
                assert queues.fold([record]) == 0
            assert (getattr(queue, name), queue.tail) == (beyond, b"")


def test_a_sum_of_bytes_beyond_bounds_is_not_usual() -> None:
    queues, most = Queues(), 2**31 - 1
    queues.by_key[key_of(1)].put_bytes = 2**63 - 1 - most
    records = [(key_of(1), START + n, 5, most, 0, False, (0, b"k", None)) for n in range(2)]
    with stage(is_compiled=True):
        assert queues.fold(records) == 1
    assert queues.by_key[key_of(1)].put_bytes == 2**63 - 1


def test_a_key_that_cannot_be_looked_up_and_columns_that_are_none_are_errors() -> None:
    queues = Queues()
    with stage(is_compiled=True):
        with pytest.raises(TypeError, match="unhashable"):
            queues.fold([([], *FINE[1:])])
        for place in (0, 1, 3, 4, 5):
            given_: list[Any] = [[], {}, 0, [], [], [], print]
            given_[place] = None
            with pytest.raises(TypeError):
                compiled.fold_usual(*given_)


def test_what_the_taker_of_other_keys_raises_is_raised() -> None:
    queues = Queues()
    record = (key_of(1), START, 5, 91, 0, False, (0, b"k", b"others"))

    def fail(*_arguments: Any) -> None:
        raise ZeroDivisionError

    with stage(is_compiled=True), pytest.raises(ZeroDivisionError):
        compiled.fold_usual([record], queues.by_key, LATEST_MS, [], [], [], fail)


# Chains.

hashes = st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([7, 8 + 7, 2**31]), max_size=20)
firsts = st.sampled_from([0, 1, 2**32 - 30, 2**32 - 21])


def chained(cells: list[int], first: int, some: list[int]) -> list[int]:
    before = []
    for number, hashed in enumerate(some, first):
        before.append(cells[hashed % len(cells)])
        cells[hashed % len(cells)] = number
    return before


@given(st.integers(0, 6), firsts, hashes, hashes)
def test_chains_are_those_that_python_makes(
    bits: int, first: int, some: list[int], more: list[int]
) -> None:
    cells, plain = array("I", [9] * (1 << bits)), [9] * (1 << bits)
    with stage(is_compiled=True):
        for each in (some, more):
            found = compiled.chain(cells, first, array("I", each))
            assert found is not None
            assert list(array("I", found)) == chained(plain, first, each)
            assert list(cells) == plain


@pytest.mark.parametrize(
    ("cells", "first", "some"),
    [
        (array("I", [0] * 3), 0, [1]),
        (array("I"), 0, [1]),
        (bytearray(6), 0, [1]),
        (array("I", [0] * 4), 2**32 - 1, [1]),
        (array("I", [0] * 4), 2**32 - 3, [1, 2, 3]),
        (array("I", [0] * 4), -1, [1]),
        (array("I", [0] * 4), 0, b"12345"),
    ],
    ids=repr,
)
def test_chains_of_other_kinds_are_declined_and_left(cells: Any, first: int, some: Any) -> None:
    before = bytes(cells)
    with stage(is_compiled=True):
        hashes = array("I", some) if isinstance(some, list) else some
        assert compiled.chain(cells, first, hashes) is None
    assert bytes(cells) == before


def test_cells_that_cannot_be_written_are_an_error() -> None:
    with stage(is_compiled=True):
        for cells in (bytes(16), [0] * 4, None):
            with pytest.raises((TypeError, BufferError)):
                compiled.chain(cells, 0, array("I", [1]))
        with pytest.raises(TypeError):
            compiled.chain(array("I", [0] * 4), 0, (1,))


# Keys in chains.

sealed_keys = st.lists(st.integers(0, 60).map(b"k%d".__mod__), min_size=1, max_size=30)


def likely(sends: ChainedSends, keys: list[Any], **others: Any) -> list[bytes] | None:
    """What the compiled code says of keys, with some arguments changed."""
    usual: dict[str, Any] = {
        "cells": sends._heads,
        "first": sends._first,
        "count": len(sends),
        "numbers": chained_sends.NUMBERS,
        "tables": sends._tables,
        "table_keys": chained_sends.TABLE_KEYS,
        "steps_max": chained_sends.CHAIN_MAX,
    }
    with stage(is_compiled=True):
        return compiled.chained_keys(keys, *(usual | others).values())


@given(
    st.lists(sealed_keys, min_size=1, max_size=6),
    st.sampled_from([1, 2, 64]),
    st.sampled_from([1, 3, 4096]),
    st.sampled_from([1, NUMBERS - 30]),
)
def test_keys_in_chains_are_those_that_python_finds(
    entries: list[list[bytes]], cells: int, steps_max: int, first: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chained_sends, "TABLE_KEYS", 8)
        patch.setattr(chained_sends, "TABLES_MAX", 6)
        patch.setattr(chained_sends, "CELLS", cells)
        patch.setattr(chained_sends, "CHAIN_MAX", steps_max)
        patch.setattr(chained_sends, "_FIRST_NUMBER", first)
        sends, offset = ChainedSends(), 0
        for keys in entries:
            sends.add(HashedKeys.of(keys, range(offset, offset + len(keys))), 0, oldest_ms=0)
            offset += len(keys)
        asked = [b"k%d" % number for number in range(90)]
        found = likely(sends, asked)
        assert found is not None
        there = [key for key in asked if sends.find(key, 1)]
        if steps_max > offset:
            assert found == there
        else:
            assert set(found) >= set(there), "a chain was not looked through: Python decides"
        for is_compiled in (True, False):
            with stage(is_compiled=is_compiled):
                assert sends.has_any(asked) == bool(there)
                assert [key for key in asked if sends.has_any([key])] == there


def test_keys_in_chains_of_other_kinds_are_declined() -> None:
    sends = ChainedSends()
    sends.add(HashedKeys.of([b"k"], [1]), 0, oldest_ms=0)
    assert (likely(sends, [b"k", b"l"]), likely(sends, [])) == ([b"k"], [])
    assert likely(sends, [b"k", "l"]) is None
    odd: list[dict[str, Any]] = [
        {"cells": array("I", [1] * 3)},
        {"cells": b""},
        {"cells": bytes(6)},
        {"first": -1},
        {"numbers": 0},
        {"numbers": 2**32 + 1},
        {"first": 7, "numbers": 7},
        {"table_keys": 0},
        {"table_keys": -1},
    ]
    for others in odd:
        assert likely(sends, [b"k"], **others) is None, others


def test_tables_that_are_not_as_they_are_said_to_be_are_an_error_or_declined() -> None:
    sends = ChainedSends()
    sends.add(HashedKeys.of([b"k"], [1]), 0, oldest_ms=0)
    with pytest.raises(IndexError):
        likely(sends, [b"k"], tables=[])
    with pytest.raises(AttributeError):
        likely(sends, [b"k"], tables=[5])
    with pytest.raises((TypeError, BufferError)):
        likely(sends, [b"k"], cells=None)
    short = ChainedTable(tags=memoryview(b"abc"))
    assert likely(sends, [b"k"], tables=[short]) is None


@examples(20)
@given(st.integers(0, 40), st.lists(st.integers(1, 30), max_size=6))
def test_chained_sends_are_found_the_same_way_where_numbers_begin_anew(
    left: int, counts: list[int]
) -> None:
    found = []
    for is_compiled in (True, False):
        with stage(is_compiled=is_compiled):
            sends = ChainedSends()
            sends._first = NUMBERS - left
            sends._heads = memoryview(array("I", (0,)) * CELLS)
            at, names = 0, []
            for count in counts:
                keys = [b"k%d" % (at + each) for each in range(count)]
                offsets: Any = [1000 + at + each for each in range(count)]
                sends.add(HashedKeys.of(keys, offsets), 5, oldest_ms=0)  # type: ignore[arg-type]
                names += keys
                at += count
            found.append([sends.find(name, 4) for name in names])
    assert found[0] == found[1]
    assert all(found[0])
