"""The values that a filter asks for, by compiled code and by Python: the same, of records of all kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.filters import compile_filter
from dledger_mq.message import compiled
from dledger_mq.message.record import encode_record, record_properties
from tests.property.store.test_record_shapes_twin import V6
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


def asked(some: list[bytes]) -> list[list[bytes | None]] | None:
    with stage(is_compiled=True):
        return compiled.asked_values([memoryview(each) for each in some], WANTED.marks)


@given(some=st.lists(records(), max_size=4))
def test_the_same_values_are_found(some: list[bytes]) -> None:
    found = asked(some)
    if found is not None:
        assert found == [WANTED.values(record_properties(each)) for each in some]


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
    assert asked([record]) == [WANTED.values(given_properties)]


@given(record=records(), at=st.floats(0, 1), bits=st.sampled_from([1, 4, 0x7F, 0x80, 0xFF]))
def test_damaged_bytes_end_in_values_or_are_declined(record: bytes, at: float, bits: int) -> None:
    data = bytearray(record)
    data[int(at * (len(data) - 1))] ^= bits
    for cut in (data, data[:-1], data[:50], data[:0]):
        found = asked([bytes(cut)])
        assert found is None or len(found[0]) == 3
