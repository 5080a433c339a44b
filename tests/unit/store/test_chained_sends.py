"""Recent sends, found by hashes: how many, for how long, and what they look like in a snapshot."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType

import msgspec
import pytest

from broker.store import chained_sends, recent_sends
from broker.store.chained_sends import (
    CELLS,
    NUMBERS,
    TABLE_KEYS,
    TABLES_MAX,
    ChainedSends,
    HashedKeys,
)
from broker.store.recent_sends import AGE_MAX_MS, RecentSends
from dledger_mq.message.numbers import PhysicalOffset

NEAR = PhysicalOffset(0)
"""The end of a log in which no send is far away."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_sends, "KEYS_MAX", 10)
    monkeypatch.setattr(chained_sends, "TABLE_KEYS", 4)
    monkeypatch.setattr(chained_sends, "TABLES_MAX", 5)
    monkeypatch.setattr(chained_sends, "CELLS", 4)


@contextlib.contextmanager
def counted_lines(module: ModuleType) -> Iterator[list[int]]:
    """Count the lines of a module that run meanwhile."""
    count, before = [0], sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != module.__file__:
            return None
        count[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def fill(window: RecentSends, count: int, *, first: int = 0, at_ms: int = 0) -> None:
    for number in range(first, first + count):
        window.add([b"k%d" % number], [number * 100], at_ms)


def known(window: RecentSends, count: int) -> list[int]:
    return [number for number in range(count) if b"k%d" % number in window]


def test_a_minute_of_a_hundred_thousand_messages_a_second_fits() -> None:
    assert TABLE_KEYS * (TABLES_MAX - 1) >= AGE_MAX_MS * 100
    sends = ChainedSends()
    assert sends.size_bytes == 0
    sends.add(HashedKeys.of([b"k"] * TABLE_KEYS, range(TABLE_KEYS)), 0, oldest_ms=0)
    table_bytes = sends.size_bytes - 4 * CELLS
    assert table_bytes * TABLES_MAX + 4 * CELLS == 80 << 20


@pytest.mark.usefixtures("small")
def test_what_no_longer_fits_the_newest_is_still_known_until_there_are_too_many() -> None:
    window = RecentSends()
    fill(window, 20)
    assert known(window, 20) == list(range(20))
    assert window.offsets(b"k3") == (300,)
    assert (len(window), window.chained.forgotten_early) == (20, 0)
    fill(window, 1, first=20)
    assert known(window, 21) == list(range(4, 21)), "a whole table went"
    assert (len(window), window.chained.forgotten_early) == (17, 4)


@pytest.mark.usefixtures("small")
def test_what_is_old_is_not_known_whatever_shares_its_table_and_is_not_forgotten_early() -> None:
    window = RecentSends()
    fill(window, 2)
    fill(window, 12, first=2, at_ms=10)
    assert known(window, 14) == list(range(14))
    window.add([b"new"], [5000], AGE_MAX_MS + 1)
    assert known(window, 14) == list(range(2, 14))
    assert window.oldest(AGE_MAX_MS + 1, NEAR) == 0, "known to a second"
    window.add([b"newer"], [5100], AGE_MAX_MS + 11)
    assert known(window, 14) == []
    assert (len(window), window.chained.forgotten_early) == (4, 0), (
        "with the new ones in their table"
    )


@pytest.mark.usefixtures("small")
def test_what_goes_at_its_last_moment_goes_early() -> None:
    window = RecentSends()
    fill(window, 1)
    fill(window, 19, first=1, at_ms=1)
    fill(window, 1, first=20, at_ms=AGE_MAX_MS + 1)
    assert window.chained.forgotten_early == 3, "the first of the table was too old"


@pytest.mark.usefixtures("small")
def test_copies_of_a_key_are_found_in_the_order_of_the_log_wherever_they_are() -> None:
    window = RecentSends()
    for number in range(14):
        window.add([b"k" if number % 3 == 0 else b"k%d" % number], [number], 0)
    assert window.offsets(b"k") == (0, 3, 6, 9, 12)


def test_a_key_with_the_same_hash_gives_places_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks reads the records: a wrong place costs a read, and a missing one a message stored twice."""
    monkeypatch.setattr(chained_sends, "hash", lambda key: -7, raising=False)
    sends = ChainedSends()
    keys = [b"k%d" % number for number in range(4)]
    sends.add(HashedKeys.of(keys, [10, 20, 30, 40]), 0, oldest_ms=0)
    for key in (*keys, b"another"):
        assert sends.find(key, 4) == [10, 20, 30, 40]
    assert sends.find(b"another", 2) == [30, 40], "the newest"


def test_a_key_in_the_same_cell_gives_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained_sends, "hash", lambda key: key[0] << 32, raising=False)
    sends = ChainedSends()
    sends.add(HashedKeys.of([b"a", b"b", b"a"], [10, 20, 30]), 0, oldest_ms=0)
    assert [sends.find(key, 4) for key in (b"a", b"b", b"c")] == [[10, 30], [20], []]


def test_one_key_that_is_sent_over_and_over_takes_no_longer_each_time() -> None:
    """With a table that was looked through from a key's slot on, 200 000 of them took a second for each entry."""
    sends, steps = ChainedSends(), list[int]()
    for number in range(40):
        offsets = range(number * 64, number * 64 + 64)
        with counted_lines(chained_sends) as lines:
            sends.add(HashedKeys.of([b"order"] * 64, offsets), 0, oldest_ms=0)
            assert sends.find(b"order", 2) == [offsets[-2], offsets[-1]]
        steps.append(lines[0])
    assert len(set(steps[1:])) == 1


def test_what_shares_a_chain_with_such_a_key_is_looked_for_so_far_and_no_farther(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chained_sends, "CELLS", 1)
    monkeypatch.setattr(chained_sends, "CHAIN_MAX", 10)
    sends = ChainedSends()
    sends.add(HashedKeys.of([b"rare"], [1]), 0, oldest_ms=0)
    sends.add(HashedKeys.of([b"order"] * 9, range(10, 19)), 0, oldest_ms=0)
    assert sends.find(b"rare", 8) == [1]
    sends.add(HashedKeys.of([b"order"], [19]), 0, oldest_ms=0)
    assert sends.find(b"rare", 8) == []


def test_keys_are_found_where_their_numbers_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained_sends, "_FIRST_NUMBER", NUMBERS - 3)
    monkeypatch.setattr(chained_sends, "CELLS", 2)
    sends, keys = ChainedSends(), [b"k%d" % number for number in range(8)]
    for start in (0, 2, 4, 6):
        offsets = range(start * 100, start * 100 + 200, 100)
        sends.add(HashedKeys.of(keys[start : start + 2], offsets), 0, oldest_ms=0)
    assert [sends.find(key, 1) for key in keys] == [[number * 100] for number in range(8)]


@pytest.mark.usefixtures("small")
def test_a_cell_that_nobody_touched_while_numbers_went_round_names_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chained_sends, "TABLES_MAX", 2)
    monkeypatch.setattr(chained_sends, "NUMBERS", 9)
    monkeypatch.setattr(chained_sends, "hash", lambda key: key[0] << 32 | key[0], raising=False)
    sends = ChainedSends()
    sends.add(HashedKeys.of([b"\1"], [0]), 0, oldest_ms=0)
    for number in range(1, 24):
        sends.add(HashedKeys.of([b"\2"], [number]), 0, oldest_ms=0)
        assert sends.find(b"\1", 8) == [0] * (len(sends) > number)
        assert sends.find(b"\2", 1) == [number]


@pytest.mark.usefixtures("small")
def test_an_entry_may_stand_in_several_tables() -> None:
    sends, keys = ChainedSends(), [b"k%d" % number for number in range(6)]
    sends.add(HashedKeys.of(keys, range(0, 600, 100)), 0, oldest_ms=0)
    assert [sends.find(key, 1) for key in keys] == [[number * 100] for number in range(6)]
    sends.forget_before(300)
    assert sends.find(b"k3", 1) == [300]
    sends.forget_before(400)
    assert [sends.find(b"k3", 1), sends.find(b"k4", 1)] == [[], [400]]


def test_records_of_one_entry_and_of_neighbours_may_stand_on_both_sides_of_4_gib() -> None:
    sends, edge = ChainedSends(), 3 << 32
    offsets = [edge - 200, edge - 100, edge, edge + 100]
    sends.add(HashedKeys.of([b"a", b"b", b"c", b"d"], offsets), 0, oldest_ms=0)
    sends.add(HashedKeys.of([b"e"], [9 << 32]), 0, oldest_ms=0)
    found = [sends.find(key, 1) for key in (b"a", b"b", b"c", b"d", b"e")]
    assert found == [[offset] for offset in (*offsets, 9 << 32)]


@pytest.mark.usefixtures("small")
def test_a_snapshot_has_the_newest_and_says_as_before_how_far_back_the_log_is_needed() -> None:
    window, again = RecentSends(), RecentSends()
    fill(window, 5)
    assert len(msgspec.msgpack.decode(window.dump())) == 4, "as it always was"
    again.load(window.dump())
    assert known(again, 5) == list(range(5))
    fill(window, 15, first=5, at_ms=3000)
    again.load(window.dump())
    assert known(again, 20) == list(range(10, 20))
    assert again.dump() == window.dump()
    for now_ms in (0, AGE_MAX_MS, AGE_MAX_MS + 1, AGE_MAX_MS + 3000):
        assert again.oldest(now_ms, NEAR) == window.oldest(now_ms, NEAR)
    fill(window, 1, first=20, at_ms=3000)
    fill(again, 1, first=20, at_ms=3000)
    assert again.dump() == window.dump()
    assert known(again, 21) == list(range(10, 21)), "what was kept as it is stays known"


@pytest.mark.usefixtures("small")
def test_marks_show_how_far_back_the_log_is_needed_to_a_second_and_go_with_time() -> None:
    window = RecentSends()
    for number in range(300):
        window.add([b"k%d" % number], [number * 100], number * 300)
        oldest_ms = number * 300 - AGE_MAX_MS
        exact = -(-max(0, oldest_ms) // 300)
        found = window.oldest(number * 300, NEAR)
        assert found is not None
        assert exact * 100 - 500 < found <= exact * 100
    assert len(msgspec.msgpack.decode(window.dump())[4][0]) < 65
    window.add([b"much later"], [100_000], 10_000_000)
    assert window.oldest(10_000_000, NEAR) == 100_000
    assert len(msgspec.msgpack.decode(window.dump())) == 4


@pytest.mark.usefixtures("small")
def test_what_stands_before_the_beginning_of_the_log_is_forgotten() -> None:
    window = RecentSends()
    fill(window, 18)
    window.forget_before(399)
    assert len(window) == 18
    window.forget_before(400)
    assert len(window) == 14, "a table ends there"
    window.forget_before(10_000)
    assert (len(window), known(window, 18), window.oldest(0, NEAR)) == (0, [], None)
