"""Recent sends that are kept as hashes: how many, for how long, and what they look like in a snapshot."""

from __future__ import annotations

import msgspec
import pytest

from broker.store import recent_sends, sealed_sends
from broker.store.recent_sends import AGE_MAX_MS, KEYS_MAX, RecentSends
from broker.store.sealed_sends import TABLE_KEYS, TABLES_MAX, SealedSends
from dledger_mq.message.numbers import PhysicalOffset

NEAR = PhysicalOffset(0)
"""The end of a log in which no send is far away."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_sends, "KEYS_MAX", 10)
    monkeypatch.setattr(sealed_sends, "TABLE_KEYS", 4)
    monkeypatch.setattr(sealed_sends, "TABLES_MAX", 2)


def fill(window: RecentSends, count: int, *, first: int = 0, at_ms: int = 0) -> None:
    for number in range(first, first + count):
        window.add([b"k%d" % number], [number * 100], at_ms)


def known(window: RecentSends, count: int) -> list[int]:
    return [number for number in range(count) if b"k%d" % number in window]


def test_a_minute_of_a_hundred_thousand_messages_a_second_fits() -> None:
    assert TABLE_KEYS * TABLES_MAX + KEYS_MAX >= AGE_MAX_MS * 100
    sends = SealedSends()
    sends.add([b"k"], [1], 0, oldest_ms=0)
    assert sends.size_bytes * TABLES_MAX == 96 << 20


@pytest.mark.usefixtures("small")
def test_what_no_longer_fits_the_newest_is_still_known_until_there_are_too_many() -> None:
    window = RecentSends()
    fill(window, 18)
    assert known(window, 18) == list(range(18))
    assert window.offsets(b"k3") == (300,)
    assert (len(window), window.sealed.forgotten_early) == (18, 0)
    fill(window, 1, first=18)
    assert known(window, 19) == list(range(4, 19)), "a whole table went"
    assert (len(window), window.sealed.forgotten_early) == (15, 4)


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
    assert (len(window.sealed), window.sealed.forgotten_early) == (0, 0)


@pytest.mark.usefixtures("small")
def test_copies_of_a_key_are_found_in_the_order_of_the_log_wherever_they_are() -> None:
    window = RecentSends()
    for number in range(14):
        window.add([b"k" if number % 3 == 0 else b"k%d" % number], [number], 0)
    assert window.offsets(b"k") == (0, 3, 6, 9, 12)


def test_a_key_with_the_same_hash_gives_places_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks reads the records: a wrong place costs a read, and a missing one a message stored twice."""
    monkeypatch.setattr(sealed_sends, "_TAG_MASK", 0)
    monkeypatch.setattr(sealed_sends, "crc32", lambda key: 7)
    monkeypatch.setattr(sealed_sends, "TABLE_KEYS", 4)
    sends = SealedSends()
    keys = [b"k%d" % number for number in range(4)]
    sends.add(keys, [10, 20, 30, 40], 0, oldest_ms=0)
    for key, offset in zip(keys, (10, 20, 30, 40), strict=True):
        assert offset in sends.find(key, 0)
    assert sends.find(b"another", 0) == [10, 20, 30, 40]


@pytest.mark.usefixtures("small")
def test_a_snapshot_has_no_sealed_ones_but_says_as_before_how_far_back_the_log_is_needed() -> None:
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
    assert known(again, 21) == list(range(10, 21)), "what is sealed from now on is known"


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
    window.forget_before(500)
    assert len(window.sealed) == 4
    window.forget_before(10_000)
    assert (len(window), known(window, 18), window.oldest(0, NEAR)) == (0, [], None)
