"""Pulls that are answered in a few pieces give what reading record by record gives."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from broker.store.not_in_memory import NotLoadedError
from broker.store.reading import GetLimits, GetResult, get_messages
from dledger import EntryDamagedError
from dledger.raft.entry import BodySpan
from dledger.raft.ids import Position
from dledger_mq.filters import compile_filter
from dledger_mq.message.hashes import tags_code
from tests.unit.store.lone_broker import FakeLog, LoneBroker

WANTED = compile_filter("TAGS = 'A'")

Outcome = GetResult | tuple[type[Exception], object]


class PartlyLoadedLog(FakeLog):
    """A log of which some entries are not in memory; `views` cuts where it likes, and can be switched off."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.cold: set[int] = set()
        self.gives_views = True
        self.given = self.looked = 0

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        if only_memory and self.entry_at(position).index in self.cold:
            return None
        return super().span_at(position, size_bytes)

    def stretches(
        self, starts: Sequence[int], sizes: Sequence[int], end: Position
    ) -> tuple[list[int], list[bytes | memoryview]]:
        found: dict[int, bytes | memoryview] = {}
        if not self.gives_views or starts[0] < self.first_position or starts[-1] >= end:
            return [], []
        for start, size_bytes in zip(starts, sizes, strict=True):
            try:
                span = self.span_at(Position(start), size_bytes, only_memory=True)
            except EntryDamagedError:
                break
            if span is None:
                break
            if self.random.random() < 0.7:
                found[span.position] = span.data
            else:
                found[start] = memoryview(span.data)[start - span.position :]
        self.looked += 1
        return list(found), list(found.values())

    def views(self, runs: Sequence[tuple[int, int]], end: Position) -> Sequence[memoryview] | None:
        assert runs == sorted(runs)
        if not self.gives_views or runs[0][0] < self.first_position or runs[-1][1] > end:
            return None
        pieces: list[memoryview] = []
        for start, stop in runs:
            try:
                span = self.span_at(Position(start), stop - start, only_memory=True)
            except EntryDamagedError:
                return None
            if span is None:
                return None
            run = memoryview(span.data)[start - span.position :][: stop - start]
            assert len(run) == stop - start, "a run is part of one body"
            at = self.random.randrange(len(run))
            pieces += [run[:at], run[at:]] if at else [run]
        self.given += 1
        return pieces


def filled(random: Random) -> tuple[LoneBroker, PartlyLoadedLog]:
    broker = LoneBroker()
    log = PartlyLoadedLog(random)
    log.entries = broker.log.entries
    broker.log = log
    for _ in range(random.randint(1, 12)):
        for _ in range(random.randint(1, 10)):
            body = bytes(random.choice((0, 10, 1000, 30_000)))
            broker.stage("T", random.randrange(2), body, TAGS=random.choice("AB"))
        broker.commit()
    return broker, log


def outcome(broker: LoneBroker, named: dict[str, object]) -> Outcome:
    try:
        return get_messages(broker.state, broker.log, "T", 0, **named)  # type: ignore[arg-type]  # drawn below
    except NotLoadedError as error:
        return NotLoadedError, list(error.places)
    except EntryDamagedError as error:
        return EntryDamagedError, str(error)


def comparable(found: Outcome, *, is_judged: bool) -> object:
    if not isinstance(found, GetResult):
        return found
    # A quick look by properties says nothing of what it has not come to.
    return (
        () if is_judged else list(found.not_loaded),
        found.status,
        found.next_offset,
        found.min_offset,
        found.max_offset,
        found.count,
        found.bytes_behind,
        b"".join(found.records),
    )


def asked(random: Random, broker: LoneBroker, log: PartlyLoadedLog) -> dict[str, object]:
    queue = broker.state.queues.get("T", 0)
    most = queue.max_offset if queue is not None else 0
    span = random.choice((8 << 30, 8 << 30, 8 << 30, 20_000, 70_000, -(1 << 60)))
    tags = {tags_code(tag) for tag in random.choice(("A", "B", "AB", "C"))}
    return {
        "offset": random.randint(0, most),
        "count_max": random.choice((0, 1, 5, 32, 1000)),
        "log_end": log.end_position,
        "bytes_max": random.choice((1, 5000, 100_000, 2**31 - 1)),
        "tag_hashes": random.choice((None, None, tags)),
        "property_filter": random.choice((None, None, None, WANTED)),
        "limits": GetLimits(
            examined_units_max=random.choice((3, 800)),
            count_max_in_memory=random.choice((4, 32)),
            bytes_max_in_memory=random.choice((2000, 262_144)),
            count_max_on_disk=random.choice((2, 8)),
            bytes_max_on_disk=random.choice((1500, 65_536)),
            judged_bytes_max=random.choice((1, 5000, 2 << 20)),
            memory_span_bytes=span,
        ),
        "may_wait": random.random() < 0.5,
    }


@pytest.mark.parametrize("block", range(4))
def test_a_pull_in_pieces_is_a_pull_record_by_record(block: int) -> None:
    given = looked = given_far = 0
    for seed in range(block * 25, block * 25 + 25):
        random = Random(seed)
        broker, log = filled(random)
        for _ in range(20):
            entries = [entry.index for entry in log.entries]
            log.cold = set(random.sample(entries, random.choice((0, 0, len(entries) // 3))))
            log.damaged = set(random.sample(entries, random.choice((0, 0, 0, 1))))
            log.first_position = random.choice((0, 0, 0, log.end_position // 2))
            named = asked(random, broker, log)
            before = log.given
            log.gives_views = True
            is_judged = named["property_filter"] is not None
            quick = comparable(outcome(broker, named), is_judged=is_judged)
            log.gives_views = False
            slow = comparable(outcome(broker, named), is_judged=is_judged)
            assert quick == slow, (seed, named)
            if named["limits"].memory_span_bytes < 8 << 30:  # type: ignore[attr-defined]
                given_far += log.given - before
        given += log.given
        looked += log.looked
    assert given > 60
    assert given_far > 60
    assert looked > 40
