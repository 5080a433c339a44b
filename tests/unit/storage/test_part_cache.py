"""Parts of the log in memory: which of them stay, and which checksums are remembered."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from dledger.raft.entry import BodySpan
from dledger.raft.ids import Index, Position
from dledger.storage import part_cache
from dledger.storage.part_cache import GROUP_BITS, PART_BYTES, LogPart, PartCache
from dledger.storage.part_reader import cut


def part(number: int, size: int = 10, at: int = 0, checksum: int | None = None) -> LogPart:
    return LogPart(Position(number * PART_BYTES + at), memoryview(bytes(size)), checksum)


def held(cache: PartCache) -> list[int]:
    return [number for number in range(6) if number in cache]


def test_what_was_not_used_for_longest_makes_room() -> None:
    cache = PartCache(30)
    for number in (1, 2, 3):
        cache.put(part(number))
    assert cache.get(1) == (PART_BYTES, bytes(10))
    cache.put(part(4))
    assert held(cache) == [1, 3, 4]
    assert cache.size_bytes == 30
    cache.put(part(3, 20))
    assert held(cache) == [3, 4]
    assert cache.size_bytes == 30


def test_one_part_is_kept_however_large_it_is() -> None:
    cache = PartCache(30)
    cache.put(part(1))
    cache.put(part(2, 100))
    assert held(cache) == [2]


def test_of_two_stretches_of_a_part_the_longer_one_is_kept() -> None:
    cache = PartCache(1000)
    cache.put(part(1, 20, at=5))
    cache.put(part(1, 10, at=100))
    assert cache.has(1, PART_BYTES + 5, PART_BYTES + 25)
    assert not cache.has(1, PART_BYTES + 4, PART_BYTES + 25)
    assert not cache.has(1, PART_BYTES + 5, PART_BYTES + 26)
    assert not cache.has(2, 2 * PART_BYTES, 2 * PART_BYTES + 1)
    cache.put(part(1, 30, at=100))
    assert cache.has(1, PART_BYTES + 100, PART_BYTES + 130)
    assert cache.size_bytes == 30


def test_bodies_of_entries_and_parts_share_the_bound() -> None:
    cache = PartCache(30)
    cache.put(part(7))
    cache.put_body(Index(7), BodySpan(Position(99), b"x" * 20))
    assert cache.body(Index(7)) == (99, b"x" * 20)
    assert cache.size_bytes == 30
    cache.put(part(0))
    assert (7 in cache, cache.body(Index(7)) is not None, cache.size_bytes) == (False, True, 30)


def test_checksums_outlive_parts_and_the_group_that_began_first_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_cache, "GROUPS_MAX", 2)
    cache = PartCache(10)
    group = 1 << GROUP_BITS
    for number in (1, group, group - 1):
        cache.put(part(number, checksum=number))
    assert [cache.checksum(each) for each in (1, group - 1, group, 2)] == [
        1,
        group - 1,
        group,
        None,
    ]
    assert 1 not in cache
    cache.put(part(2 * group, checksum=0))
    assert [cache.checksum(each) for each in (1, group, 2 * group)] == [None, group, 0]
    cache.clear()
    assert (cache.checksum(group), cache.size_bytes, 2 * group in cache) == (None, 0, False)


@pytest.mark.parametrize("position", [0, 1, PART_BYTES - 1, 5 * PART_BYTES])
@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_the_parts_of_some_bytes_are_these_bytes(position: int, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    parts = cut(Position(position), memoryview(data))
    assert b"".join(each.view for each in parts) == data
    at = position
    for each in parts:
        assert each.position == at
        assert at // PART_BYTES == (at + len(each.view) - 1) // PART_BYTES
        is_whole = len(each.view) == PART_BYTES
        assert each.checksum == (crc32c(bytes(each.view)) if is_whole else None)
        at += len(each.view)
