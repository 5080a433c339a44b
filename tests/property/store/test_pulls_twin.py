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
from dledger_mq.message.hashes import tags_code
from tests.unit.store.lone_broker import FakeLog, LoneBroker

Outcome = GetResult | tuple[type[Exception], object]


class PartlyLoadedLog(FakeLog):
    """A log of which some entries are not in memory; `views` cuts where it likes, and can be switched off."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.cold: set[int] = set()
        self.gives_views = True
        self.given = 0

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        if only_memory and self.entry_at(position).index in self.cold:
            return None
        return super().span_at(position, size_bytes)

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


def comparable(found: Outcome) -> object:
    if not isinstance(found, GetResult):
        return found
    return (
        found.status,
        found.next_offset,
        found.min_offset,
        found.max_offset,
        found.count,
        found.bytes_behind,
        list(found.not_loaded),
        b"".join(found.records),
    )


def asked(random: Random, broker: LoneBroker, log: PartlyLoadedLog) -> dict[str, object]:
    queue = broker.state.queues.get("T", 0)
    most = queue.max_offset if queue is not None else 0
    span = random.choice((8 << 30, 8 << 30, 20_000, -(1 << 60)))
    tags = {tags_code(tag) for tag in random.choice(("A", "B", "AB", "C"))}
    return {
        "offset": random.randint(0, most),
        "count_max": random.choice((0, 1, 5, 32, 1000)),
        "log_end": log.end_position,
        "bytes_max": random.choice((1, 5000, 100_000, 2**31 - 1)),
        "tag_hashes": random.choice((None, None, tags)),
        "limits": GetLimits(
            examined_units_max=random.choice((3, 800)),
            count_max_in_memory=random.choice((4, 32)),
            bytes_max_in_memory=random.choice((2000, 262_144)),
            memory_span_bytes=span,
        ),
        "may_wait": random.random() < 0.5,
    }


@pytest.mark.parametrize("block", range(4))
def test_a_pull_in_pieces_is_a_pull_record_by_record(block: int) -> None:
    given = 0
    for seed in range(block * 25, block * 25 + 25):
        random = Random(seed)
        broker, log = filled(random)
        for _ in range(20):
            entries = [entry.index for entry in log.entries]
            log.cold = set(random.sample(entries, random.choice((0, 0, len(entries) // 3))))
            log.damaged = set(random.sample(entries, random.choice((0, 0, 0, 1))))
            log.first_position = random.choice((0, 0, 0, log.end_position // 2))
            named = asked(random, broker, log)
            log.gives_views = True
            quick = comparable(outcome(broker, named))
            log.gives_views = False
            assert quick == comparable(outcome(broker, named)), (seed, named)
        given += log.given
    assert given > 100
