"""The window of recent sends against a twin that keeps a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store import chained_sends, recent_sends
from broker.store.recent_sends import RecentSends
from dledger_mq.message import compiled
from dledger_mq.message.numbers import PhysicalOffset
from tests.property.store.scripts import History, committed, histories
from tests.stages import stage

KEYS_MAX, AGE_MAX_MS, KEY_BYTES_MAX, COPIES_MAX = 6, 100, 3, 2
TABLE_KEYS, TABLES_MAX, CELLS, NUMBERS, FIRST_NUMBER = 4, 3, 2, 19, 15

NEAR = PhysicalOffset(0)
"""The end of a log in which no send is far away."""

uniq_keys = st.sampled_from([b"a", b"b", b"c", b"d", b"long", b"e", b"f"])
entries = st.lists(st.tuples(st.lists(uniq_keys, max_size=5), st.integers(0, 60)), max_size=24)


class Twin:
    """The newest entries and, in lists of TABLE_KEYS, all records; looked through from the start."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, list[tuple[bytes, int]]]] = []
        self.tables: list[list[tuple[int, bytes, int]]] = []
        self.forgotten_early = 0
        self.left_early = False
        self.oldest_ms = 0

    def add(self, pairs: list[tuple[bytes, int]], now_ms: int) -> None:
        short = [(key, offset) for key, offset in pairs if len(key) <= KEY_BYTES_MAX]
        if not short:
            return
        self.oldest_ms = now_ms - AGE_MAX_MS
        for key, offset in short:
            self.note(now_ms, key, offset)
        self.entries.append((now_ms, short))
        while len(self.entries) > 1 and (
            sum(len(some) for _, some in self.entries) > KEYS_MAX
            or self.entries[0][0] < self.oldest_ms
        ):
            store_ms, _ = self.entries.pop(0)
            self.left_early = self.left_early or store_ms >= self.oldest_ms
        while self.tables and self.tables[0][-1][0] < self.oldest_ms:
            self.tables.pop(0)

    def note(self, store_ms: int, key: bytes, offset: int) -> None:
        if not self.tables or len(self.tables[-1]) == TABLE_KEYS:
            if len(self.tables) == TABLES_MAX:
                gone = self.tables.pop(0)
                self.forgotten_early += sum(time >= self.oldest_ms for time, _, _ in gone)
            self.tables.append([])
        self.tables[-1].append((store_ms, key, offset))

    @property
    def count(self) -> int:
        return sum(map(len, self.tables))

    def records(self) -> list[tuple[int, bytes, int]]:
        return [each for table in self.tables for each in table if each[0] >= self.oldest_ms]

    def offsets(self, key: bytes) -> tuple[int, ...]:
        found = [offset for _, own, offset in self.records() if own == key]
        return tuple(found[-COPIES_MAX:])

    def oldest(self, now_ms: int) -> int | None:
        kept = [(ms, at) for ms, pairs in self.entries for _, at in pairs]
        found = [*((ms, at) for ms, _, at in self.records()), *kept]
        return min((at for ms, at in found if ms >= now_ms - AGE_MAX_MS), default=None)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_sends, "KEYS_MAX", KEYS_MAX)
    monkeypatch.setattr(recent_sends, "KEY_BYTES_MAX", KEY_BYTES_MAX)
    monkeypatch.setattr(recent_sends, "COPIES_MAX", COPIES_MAX)
    monkeypatch.setattr(chained_sends, "TABLE_KEYS", TABLE_KEYS)
    monkeypatch.setattr(chained_sends, "TABLES_MAX", TABLES_MAX)
    monkeypatch.setattr(chained_sends, "CELLS", CELLS)
    monkeypatch.setattr(chained_sends, "NUMBERS", NUMBERS)
    monkeypatch.setattr(chained_sends, "_FIRST_NUMBER", FIRST_NUMBER)


@given(entries)
def test_the_window_finds_what_its_twin_finds(steps: list[tuple[list[bytes], int]]) -> None:
    window, twin, now_ms, offset = RecentSends(AGE_MAX_MS), Twin(), 0, 0
    for keys, pause_ms in steps:
        now_ms += pause_ms
        offsets = list(range(offset, offset + len(keys)))
        offset += len(keys)
        window.add(keys, offsets, now_ms)
        twin.add(list(zip(keys, offsets, strict=True)), now_ms)
        asked = [b"a", b"b", b"c", b"d", b"e", b"f", b"long"]
        for key in asked:
            assert window.offsets(key) == twin.offsets(key)
            assert (key in window) == bool(twin.offsets(key))
        there = [key for key in asked if key in window]
        for is_compiled in {False, compiled.is_built}:
            with stage(is_compiled=is_compiled):
                assert [key for key in asked if window.has_any([key])] == there
                assert window.has_any([b"never", *asked]) == bool(there)
        assert len(window) == twin.count
        assert window.chained.forgotten_early == twin.forgotten_early
        oldest, exact = window.oldest(now_ms, NEAR), twin.oldest(now_ms)
        if exact is not None:
            assert oldest is not None
            assert oldest <= exact, "nothing that may be looked up is given back"
        if not twin.left_early:
            assert oldest == exact


@given(entries, entries)
def test_a_restored_window_goes_on_like_the_first(
    before: list[tuple[list[bytes], int]], after: list[tuple[list[bytes], int]]
) -> None:
    first, second = RecentSends(AGE_MAX_MS), RecentSends(AGE_MAX_MS)
    first.begin_term(3, 17)
    now_ms, offset = 0, 0
    for number, (keys, pause_ms) in enumerate(before + after):
        if number == len(before):
            second.load(first.dump())
        now_ms += pause_ms
        offsets = list(range(offset, offset + len(keys)))
        offset += len(keys)
        for window in (first, second) if number >= len(before) else (first,):
            window.add(keys, offsets, now_ms)
            assert second.dump() == first.dump() or window is first
    if not after:
        second.load(first.dump())
    assert list(second.entries()) == list(first.entries())
    for key in {key for _, keys, _ in second.entries() for key in keys}:
        kept = [
            at
            for _, keys, of in second.entries()
            for at, own in zip(of, keys, strict=True)
            if own == key
        ]
        for window in (first, second):
            assert window.offsets(key)[-len(kept) :] == tuple(kept[-COPIES_MAX:])
    assert second.oldest(now_ms, NEAR) == first.oldest(now_ms, NEAR)
    assert (second.term, second.term_start, second.digest) == (3, 17, first.digest)


@given(histories)
def test_the_fold_remembers_every_record_with_a_key_and_nothing_else(history: History) -> None:
    """What a leader staged and what a follower parsed give the same window."""
    leader, follower = committed(history, parses=False), committed(history)
    leading, following = leader.state.recent_sends, follower.state.recent_sends
    assert leading.dump() == following.dump()
    assert leading.digest == following.digest
    for _, keys, offsets in leading.entries():
        for key, offset in zip(keys, offsets, strict=True):
            assert offset in leading.offsets(key) or len(leading.offsets(key)) == COPIES_MAX
            assert leading.offsets(key) == following.offsets(key)
            entry = leader.log.entry_at(offset)  # type: ignore[arg-type]  # a position
            assert key in entry.body[offset - entry.position - 48 :]
