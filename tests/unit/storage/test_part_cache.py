"""Parts of old entries in memory: which of them stay."""

from __future__ import annotations

from array import array

import pytest
from crc32c import crc32c

from dledger.raft.entry import ENTRY_HEADER_BYTES, BodySpan, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage import part_cache
from dledger.storage.part_cache import PART_BYTES, CutEntry, PartCache, cut_entry


def part(position: int, size: int = 10) -> BodySpan:
    return BodySpan(Position(position), bytes(size))


def test_what_was_not_used_for_longest_makes_room() -> None:
    cache = PartCache(30)
    for position in (1, 2, 3):
        cache.put(part(position))
    assert cache.get(Position(1)) == bytes(10)
    cache.put(part(4))
    assert [each for each in range(6) if Position(each) in cache] == [1, 3, 4]
    assert cache.size_bytes == 30
    cache.put(part(3, 20))
    assert [each for each in range(6) if Position(each) in cache] == [3, 4]
    assert cache.size_bytes == 30


def test_one_part_is_kept_however_large_it_is() -> None:
    cache = PartCache(30)
    cache.put(part(1))
    cache.put(part(2, 100))
    assert Position(1) not in cache
    assert cache.get(Position(2)) == bytes(100)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_the_parts_of_an_entry_are_its_body(size: int) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    entry = Entry(Index(7), Term(1), Position(1000), EntryKind.NORMAL, body[:size])
    cut = cut_entry(entry)
    assert b"".join(each.data for each in cut.parts) == entry.body
    at = 1000 + ENTRY_HEADER_BYTES
    for each in cut.parts:
        assert (each.position, 0 < len(each.data) <= PART_BYTES) == (at, True)
        at += len(each.data)
    if size <= PART_BYTES:
        assert cut.checksums is None
    else:
        assert list(cut.checksums or ()) == [crc32c(each.data) for each in cut.parts]


def test_checksums_are_bounded_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_cache, "CHECKSUMS_MAX", 5)
    cache = PartCache(1000)
    for index in (1, 2, 2, 3):
        cache.put_entry(CutEntry(Index(index), [], array("I", (index, index))))
    assert cache.checksums(Index(1)) is None
    assert [list(cache.checksums(Index(index)) or ()) for index in (2, 3)] == [[2, 2], [3, 3]]
