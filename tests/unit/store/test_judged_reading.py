"""Reading by queue offset with a filter by properties: D8, D14, D16, D19, and what is not in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from broker.store.not_in_memory import NotLoadedError
from broker.store.reading import GetLimits, GetResult, GetStatus, get_messages
from dledger import EntryDamagedError
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger_mq.filters import compile_filter
from dledger_mq.message.record import decode_record
from tests.stages import EACH, stage
from tests.unit.store.lone_broker import LoneBroker

FAR = 1 << 60
ON_DISK = GetLimits(memory_span_bytes=-FAR)


def filled(count: int, body: bytes = b"x", *, each: int = 7) -> LoneBroker:
    """Messages whose property `n` counts them, so many in an entry."""
    broker = LoneBroker()
    for n in range(count):
        broker.stage("T", 0, body, TAGS="a", n=str(n))
        if n % each == each - 1:
            broker.commit()
    if broker.staging.staged_count:
        broker.commit()
    return broker


def get(broker: LoneBroker, text: str, offset: int = 0, **named: Any) -> GetResult:
    usual = {"count_max": 32, "log_end": broker.log.end_position}
    return get_messages(
        broker.state,
        broker.log,
        "T",
        0,
        offset=offset,
        property_filter=compile_filter(text),
        **(usual | named),
    )


def offsets(result: GetResult) -> list[int]:
    return [decode_record(bytes(record)).queue_offset for record in result.records]


BOTH = pytest.mark.parametrize("limits", [GetLimits(), ON_DISK], ids=["in memory", "on disk"])


@BOTH
def test_it_gives_what_matches_and_goes_on_after_the_rest(limits: GetLimits) -> None:
    result = get(filled(20), "n IN ('3','11')", limits=limits)
    assert (result.status, offsets(result), result.next_offset) == (GetStatus.FOUND, [3, 11], 20)
    assert (result.count, result.min_offset, result.max_offset) == (2, 0, 20)


@BOTH
def test_d8_what_does_not_match_counts_as_examined(limits: GetLimits) -> None:
    result = get(filled(20), "n < 0", 5, limits=limits)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 20)
    assert result.bytes_behind > 0


def test_d14_at_most_800_are_examined() -> None:
    result = get(filled(1000, each=100), "n >= 900")
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)


@BOTH
@pytest.mark.parametrize(
    ("term", "count", "examined"),
    [
        ("n = 'x'", 32, 800),
        ("n = 'x'", 64, 400),
        ("n = 'x'", 200, 128),
        ("n CONTAINS 'x'", 64, 400),
    ],
)
def test_d14_a_long_filter_is_tried_on_fewer(
    limits: GetLimits, term: str, count: int, examined: int
) -> None:
    text = " OR ".join([term] * count)
    limits = replace(limits, judged_bytes_max=FAR)
    result = get(filled(900, each=100), text, limits=limits, count_max=800)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, examined)


@BOTH
def test_a_long_filter_is_tried_on_fewer_bytes(limits: GetLimits) -> None:
    broker = filled(20, b"x" * 10_000)
    for count, examined in ((8, 10), (16, 5), (128, 1)):
        text = " OR ".join(["n = 'x'"] * count)
        result = get(broker, text, limits=replace(limits, judged_bytes_max=101_000))
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, examined)


@pytest.mark.parametrize(
    ("named", "found", "next_offset"),
    [
        ({}, 32, 63),
        ({"count_max": 5}, 5, 9),
        ({"limits": ON_DISK}, 8, 15),
        ({"bytes_max": 1}, 1, 1),
        ({"limits": GetLimits(judged_bytes_max=1)}, 1, 1),
    ],
    ids=["count", "asked for", "on disk", "bytes", "judged"],
)
def test_d16_a_batch_is_full(named: dict[str, Any], found: int, next_offset: int) -> None:
    even = " OR ".join(f"n = {n}" for n in range(0, 100, 2))
    result = get(filled(100), even, **named)
    assert (result.count, result.next_offset) == (found, next_offset)
    assert offsets(result) == list(range(0, 2 * found, 2))


@BOTH
def test_what_a_filter_looks_at_in_one_read_is_bounded_in_bytes(limits: GetLimits) -> None:
    small = GetLimits(memory_span_bytes=limits.memory_span_bytes, judged_bytes_max=2500)
    result = get(filled(10, b"x" * 1000, each=1), "n < 0", limits=small)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)


class InMemory:
    """A log that has everything in memory but some entries: whole bodies, or each record alone."""

    def __init__(self, broker: LoneBroker, *, is_whole: bool = True) -> None:
        self._log = broker.log
        self._is_whole = is_whole
        self.cold: set[int] = set()

    def stretches(
        self, starts: Sequence[int], sizes: Sequence[int], _end: int
    ) -> tuple[list[int], list[bytes]]:
        found: dict[int, bytes] = {}
        for start, size_bytes in zip(starts, sizes, strict=True):
            entry = self._log.entry_at(start)  # type: ignore[arg-type]  # as units have it
            if entry.index in self.cold:
                break
            body, first = entry.body, entry.position + ENTRY_HEADER_BYTES
            if self._is_whole:
                found[first] = body
            else:
                found[start] = body[start - first :][:size_bytes]
        return list(found), list(found.values())


@pytest.mark.parametrize(
    ("named", "found", "next_offset"),
    [
        ({}, [9, 11, 70], 100),
        ({"count_max": 2}, [9, 11], 12),
        ({"bytes_max": 1}, [9], 10),
        ({"bytes_max": 150}, [9], 11),
        ({"limits": GetLimits(judged_bytes_max=1100)}, [9], 11),
    ],
    ids=["all", "count", "no bytes", "bytes for one", "judged"],
)
@pytest.mark.parametrize("is_whole", [True, False], ids=["bodies", "records"])
@pytest.mark.parametrize("is_compiled", EACH)
def test_what_is_in_memory_is_read_to_the_same_end(
    *, is_compiled: bool, is_whole: bool, named: dict[str, Any], found: list[int], next_offset: int
) -> None:
    broker = filled(100)
    usual = {"count_max": 32, "log_end": broker.log.end_position}
    read = partial(
        get_messages,
        broker.state,
        topic="T",
        queue_id=0,
        offset=0,
        property_filter=compile_filter("n IN ('9', '11', '70')"),
        **(usual | named),
    )
    with stage(is_compiled=is_compiled):
        result = read(log=InMemory(broker, is_whole=is_whole))  # type: ignore[arg-type]  # what is asked of it
    assert (offsets(result), result.next_offset) == (found, next_offset)
    slowly = read(log=broker.log)
    assert (offsets(slowly), slowly.next_offset) == (found, next_offset)


def test_a_quick_read_ends_before_what_is_not_in_memory() -> None:
    broker = filled(100, each=1)
    log = InMemory(broker)
    log.cold = {broker.log.entries[41].index}
    result = get_messages(
        broker.state,
        log,  # type: ignore[arg-type]  # what is asked of it
        "T",
        0,
        offset=0,
        count_max=32,
        log_end=broker.log.end_position,
        property_filter=compile_filter("n > 50"),
    )
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 40)


class Cold:
    """A log of which only some entries are in memory."""

    def __init__(self, broker: LoneBroker, *warm: int) -> None:
        self._log = broker.log
        self.warm = {broker.log.entries[number].index for number in warm}
        self.read_now = 0

    def stretches(self, *_places: object) -> tuple[list[int], list[bytes]]:
        return [], []

    def span_at(self, position: Any, size_bytes: int, *, only_memory: bool = False) -> Any:
        if self._log.entry_at(position).index not in self.warm:
            if only_memory:
                return None
            self.read_now += 1
        return self._log.span_at(position, size_bytes)


def get_cold(broker: LoneBroker, log: Cold, text: str, *, may_wait: bool) -> GetResult:
    return get_messages(
        broker.state,
        log,  # type: ignore[arg-type]  # what is asked of it
        "T",
        0,
        offset=0,
        count_max=32,
        log_end=broker.log.end_position,
        property_filter=compile_filter(text),
        may_wait=may_wait,
    )


def test_the_first_that_is_to_be_judged_is_waited_for_with_those_behind_it() -> None:
    broker = filled(100, each=1)
    with pytest.raises(NotLoadedError) as missing:
        get_cold(broker, Cold(broker), "n = 99", may_wait=True)
    assert len(missing.value.places) == 64


def test_a_read_ends_before_what_is_not_in_memory_and_names_it() -> None:
    broker = filled(10, each=1)
    result = get_cold(broker, Cold(broker, 1, 2, 3), "n = 1", may_wait=True)
    assert (offsets(result), result.next_offset) == ([1], 3)
    assert len(result.not_loaded) == 7
    nothing = get_cold(broker, Cold(broker, 1, 2, 3), "n = 9", may_wait=True)
    assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)


def test_who_may_not_wait_has_one_read_now_and_gets_on() -> None:
    broker = filled(10, each=1)
    log = Cold(broker)
    result = get_cold(broker, log, "n = 9", may_wait=False)
    assert (result.status, result.next_offset, log.read_now) == (GetStatus.NO_MATCHED_MESSAGE, 1, 1)


@BOTH
def test_a_damaged_message_is_never_taken_for_one_that_does_not_match(limits: GetLimits) -> None:
    broker = filled(10, each=1)
    broker.log.damaged = {broker.log.entries[4].index}
    result = get(broker, "n > 8", limits=ON_DISK)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)
    with pytest.raises(EntryDamagedError):
        get(broker, "n > 8", 3, limits=limits)
