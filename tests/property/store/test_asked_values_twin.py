"""The values that a filter asks for, by compiled code and by Python: the same, of records of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.unit_stores import UNIT
from dledger_mq.filters import compile_filter
from dledger_mq.message import compiled
from dledger_mq.message.record import encode_record, record_properties
from tests.property.store.test_record_shapes_twin import V6, record_of
from tests.stages import needs_compiled, stage
from tests.unit.store.lone_broker import BORN, HOST

pytestmark = [pytest.mark.slow, needs_compiled]

WANTED = compile_filter("a = '1' OR ab = '2' OR TAGS = 'x'")

pairs = st.sampled_from(
    [b"a\x011\x02", b"a\x01\x02", b"a\x012\x01\x02", b"ab\x012\x02", b"ba\x013\x02", b"a", b"\x01", b"\x02",
     b"TAGS\x01x\x02", b"TAGS\x01y", b"a\x01"]
)  # fmt: skip
properties = st.lists(pairs, max_size=6).map(b"".join)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    return encode_record(
        topic=draw(st.sampled_from([b"T", b"a\x011\x02", b"t" * 127, b"t" * 200])),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        sys_flag=draw(st.sampled_from([0] * 9 + [1, 4, 8, 12])),
        born_timestamp_ms=1,
        born_host=draw(st.sampled_from([BORN] * 9 + [V6])),
        store_timestamp_ms=2,
        store_host=HOST,
        body=draw(st.sampled_from([b"", b"\x02a\x01body\x02", b"x" * 300])),
        properties=draw(properties),
    )


START = 1 << 40


class Laid(NamedTuple):
    """Records as they lie in some stretches of the log, and their units."""

    units: memoryview
    positions: list[int]
    data: list[memoryview]


def laid(records: Sequence[bytes], breaks: Sequence[bool] = (), *, between: int = 0) -> Laid:
    """Lay records one behind the other, each that has a break in a stretch of its own and of what follows it."""
    units, at = b"", START
    positions: list[int] = []
    stretches: list[bytes] = []
    for number, record in enumerate(records):
        if not stretches or (number < len(breaks) and breaks[number]):
            positions.append(at)
            stretches.append(b"")
        gap = b"\x02a\x019\x02"[:between]
        units += UNIT.pack(at + len(gap), len(record), 0)
        stretches[-1] += gap + record
        at += len(gap) + len(record)
    return Laid(memoryview(units), positions, [memoryview(each) for each in stretches])


def asked(given_laid: Laid) -> list[tuple[bytes | None, ...]] | None:
    with stage(is_compiled=True):
        return compiled.asked_values(*given_laid, WANTED.marks)


def expected(some: Sequence[bytes]) -> list[tuple[bytes | None, ...]]:
    return [tuple(WANTED.values(record_properties(each))) for each in some]


@given(
    some=st.lists(records(), max_size=4),
    breaks=st.lists(st.booleans(), max_size=4),
    between=st.integers(0, 5),
)
def test_the_same_values_are_found(some: list[bytes], breaks: list[bool], between: int) -> None:
    found = asked(laid(some, breaks, between=between))
    if found is not None:
        assert found == expected(some)


@given(count=st.integers(1, 4), breaks=st.lists(st.booleans(), max_size=4), data=st.data())
def test_it_ends_at_the_first_record_that_is_not_there_whole(
    count: int, breaks: list[bool], data: st.DataObject
) -> None:
    some = [record_of(b"UNIQ_KEY\x01k%d\x02a\x01%d\x02" % (n, n)) for n in range(count)]
    units, positions, stretches = laid(some, breaks)
    lost = data.draw(st.integers(0, len(stretches) - 1))
    kept = data.draw(st.integers(0, len(stretches[lost]) - 1))
    end = positions[lost] + kept
    ends = accumulate(map(len, some), initial=START)
    whole = sum(each <= end for each in ends) - 1
    if kept:
        stretches[lost] = stretches[lost][:kept]
    else:
        del positions[lost], stretches[lost]
    assert asked(Laid(units, positions, stretches)) == expected(some[:whole])


numbers = st.one_of(
    st.integers(START - 200, START + 400),
    st.sampled_from([0, 1, -1, 2**31 - 1, 2**63 - 1, -(2**63), 2**63 - 100]),
)


@given(
    places=st.lists(st.tuples(numbers, st.integers(-(2**31), 2**31 - 1) | st.integers(0, 200))),
    positions=st.lists(numbers, max_size=4),
    sizes=st.lists(st.integers(0, 300), max_size=4),
)
def test_places_that_make_no_sense_end_in_rows_or_are_declined(
    places: list[tuple[int, int]], positions: list[int], sizes: list[int]
) -> None:
    units = b"".join(UNIT.pack(at, size, 0) for at, size in places)
    sound = record_of(b"UNIQ_KEY\x01k\x02a\x01b\x02") * 4
    data = [memoryview(sound[:size]) for size in sizes]
    for cut in (units, units[:-1]):
        found = asked(Laid(memoryview(cut), positions, data))
        assert found is None or len(found) <= len(places)


@given(given_properties=properties, body=st.binary(max_size=40))
def test_plain_records_are_not_declined(given_properties: bytes, body: bytes) -> None:
    record = encode_record(
        topic=b"T",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        sys_flag=8,
        born_timestamp_ms=1,
        born_host=BORN,
        store_timestamp_ms=2,
        store_host=HOST,
        body=body,
        properties=given_properties,
    )
    assert asked(laid([record])) == [tuple(WANTED.values(given_properties))]


@given(record=records(), at=st.floats(0, 1), bits=st.sampled_from([1, 4, 0x7F, 0x80, 0xFF]))
def test_damaged_bytes_end_in_values_or_are_declined(record: bytes, at: float, bits: int) -> None:
    data = bytearray(record)
    data[int(at * (len(data) - 1))] ^= bits
    for cut in (data, data[:-1], data[:50], data[:0]):
        found = asked(laid([bytes(cut)]))
        assert found is None or [len(row) for row in found] == [3]
