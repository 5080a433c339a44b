"""What is found in parts of the log is what reading its entries one by one gives, whatever is damaged on the way."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import pytest

from dledger.codec.entry import EntryFormatError, decode_known, verified_bytes
from dledger.errors import CorruptionError
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import Index, Position
from dledger.storage.part_cache import PART_BYTES, PartCache
from dledger.storage.part_reader import LoadPlanner
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

SIZES = (1, 100, 1000, 5000, PART_BYTES - ENTRY_HEADER_BYTES, PART_BYTES, 3 * PART_BYTES + 7)


class Twins:
    """A log that is read by parts, as pulls do, and entry by entry, with nothing remembered."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = SimDisk(random)
        self.log = SegmentedLog.open(
            self.disk,
            segment_size_bytes=random.choice((20_000, 150_000, 1 << 22)),
            cache_bytes_max=random.choice((0, 0, 100_000)),
        )
        few = random.sample(SIZES, 3)
        self.bodies = list(self.log.append(self._new(few, random.randint(1, 150))))
        flush(self.log)
        self.cache = PartCache(random.choice((1, 4 * PART_BYTES, 1 << 30)))
        self.planner = LoadPlanner(self.log, self.cache)
        self.flipped: set[int] = set()
        self.differences = self.given = self.found = 0

    def _new(self, sizes: list[int], count: int) -> list[Entry]:
        chosen = [self.random.choice(sizes) for _ in range(count)]
        return new_entries(self.log, 1, chosen)

    def ordinary(self, start: int, end: int) -> bytes | None:
        """Return bytes of an entry's body; None if it is damaged."""
        try:
            entry = self.log.entry_at(Position(start))
        except CorruptionError:
            return None
        at = start - entry.position - ENTRY_HEADER_BYTES
        return entry.body[at : at + end - start]

    def some_run(self) -> tuple[int, int]:
        first = self.log.layout.first_index - 1
        entry = self.random.choice(self.bodies[first:])
        at = self.random.randrange(len(entry.body))
        size = self.random.randint(1, min(len(entry.body) - at, self.random.choice((50, 200_000))))
        start = entry.position + ENTRY_HEADER_BYTES + at
        return start, start + size

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.1:
            self.flip()
        elif chance < 0.13:
            self.bodies += self.log.append(self._new([100, 5000], 5))
            flush(self.log)
        elif chance < 0.15:
            drop = self.log.drop_before(Index(self.random.randint(1, len(self.bodies))))
            if drop is not None:
                drop.run()
        runs = sorted({self.some_run() for _ in range(self.random.randint(1, 4))})
        self.compare(runs)
        load = self.planner.plan(
            [(start, end - start) for start, end in runs],
            self.log.durable_index,
            ahead=self.random.random() < 0.5,
        )
        load.run()
        self.planner.put(load)
        self.compare(runs)
        assert self.cache.size_bytes <= max(self.cache.bytes_max, 4 * PART_BYTES)

    def compare(self, runs: list[tuple[int, int]]) -> None:
        """Hold what memory gives against what was written, and against what is read now where nothing is flipped."""
        pieces = self.planner.views(runs)
        if pieces is not None:
            self.given += 1
            written = [
                self.bodies[(self.log.layout.index_at(Position(start)) or 0) - 1]
                for start, _ in runs
            ]
            assert b"".join(pieces) == b"".join(
                entry.body[start - entry.position - ENTRY_HEADER_BYTES :][: end - start]
                for entry, (start, end) in zip(written, runs, strict=True)
            )
        self.compare_stretches(runs)
        for start, end in runs:
            index = self.log.layout.index_at(Position(start))
            assert index is not None
            span = self.planner.span(index, Position(start), end - start)
            read = self.ordinary(start, end)
            if span is None or read is None:
                self.differences += span is None and read is None
                continue
            assert bytes(span.data[start - span.position :][: end - start]) == read

    def compare_stretches(self, runs: list[tuple[int, int]]) -> None:
        """Hold the bytes around records that do not overlap against what pieces of them say."""
        apart: list[tuple[int, int]] = []
        for run in runs:
            if not apart or run[0] >= apart[-1][1]:
                apart.append(run)
        positions, data = self.planner.stretches(
            [start for start, _ in apart], [end - start for start, end in apart]
        )
        assert positions == sorted(set(positions))
        for run in apart:
            place = bisect_right(positions, run[0]) - 1
            first = run[0] - positions[place] if place >= 0 else 0
            found = data[place][first : first + run[1] - run[0]] if place >= 0 else b""
            pieces = self.planner.views([run])
            if len(found) < run[1] - run[0]:
                assert pieces is None
                break
            assert pieces is not None
            assert b"".join(pieces) == found
            self.found += 1

    def flip(self) -> None:
        """Flip a bit of a body, or flip one back."""
        if self.flipped and self.random.random() < 0.5:
            at = self.flipped.pop()
            if at < self.log.layout.first_position:
                return
        else:
            start, end = self.some_run()
            at = self.random.randrange(start, end)
            if at in self.flipped:
                return
            self.flipped.add(at)
        place = self.log.file_place(Position(at))
        self.disk.flip_bit(place.path, place.offset)


@pytest.mark.parametrize("block", range(3))
def test_parts_give_what_entries_give(block: int) -> None:
    given = found = damaged = 0
    for seed in range(block * 8, block * 8 + 8):
        twins = Twins(seed)
        for _ in range(25):
            twins.step()
        given += twins.given
        found += twins.found
        damaged += twins.differences
    assert given > 50
    assert found > 150
    assert damaged > 5


def test_bytes_are_verified_up_to_the_first_entry_that_differs() -> None:
    random = Random(7)
    log = SegmentedLog.open(SimDisk(random), cache_bytes_max=1 << 20)
    entries = log.append(new_entries(log, 1, [random.randint(0, 60) for _ in range(12)]))
    whole = b"".join(each.header + each.body for each in entries)
    crcs = log._index.chain_crcs_of(Index(1), Index(13))
    assert verified_bytes(whole, crcs, 0) == len(whole)
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << random.randrange(8)
        for given in (bytes(data), whole[:at]):
            with pytest.raises(EntryFormatError):
                decode_known(given, crcs, 0)
            end = verified_bytes(given, crcs, 0)
            count = sum(each.end_position <= end for each in entries)
            assert end == max(each.position for each in entries if each.position <= at)
            assert decode_known(given[:end], crcs[:count], 0) == list(entries[:count])
