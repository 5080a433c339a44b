"""Shapes of properties: what is read with them is what reading each time gives."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.service.send import SendSettings
from broker.service.shapes import SHAPE_BYTES_MAX, SHAPES_MAX, Shapes
from broker.store.parse import folded_properties
from dledger_mq.message.properties import (
    PROPERTIES_BYTES_MAX,
    UNIQ_KEY,
    find_property,
    terminated,
)

STAMP = SendSettings.make_stamp(region="R", trace_on=True, cluster="C")
PAIRS = st.sampled_from(
    [
        b"TAGS\x01red\x02",
        b"TAGS\x01\x02",
        b"KEYS\x01a b\x02",
        b"xTAGS\x01no\x02",
        b"p\x01TAGS\x01in a value\x02",
        b"UNIQ_KEY\x01\x02",
        b"xUNIQ_KEY\x01no\x02",
        b"\x02",
        b"no pair",
        b"UNIQ_KEY\x01k1\x02",
        b"UNIQ_KEY\x01k2\x02",
        b"UNIQ_KEY\x01TAGS\x01odd\x02",
        b"UNIQ_KEY\x01not ended",
    ]
)


@given(st.lists(st.lists(PAIRS, max_size=6).map(b"".join), min_size=1, max_size=6))
@example([b"UNIQ_KEY\x01k1\x02TAGS\x01red", b"UNIQ_KEY\x01k2\x02TAGS\x01red"])
def test_what_is_read_with_a_shape_is_what_reading_gives(texts: list[bytes]) -> None:
    shapes = Shapes(STAMP)
    for properties in texts:
        plain = shapes.read(properties)
        if plain is None:
            continue
        uniq_key, stored, folded = plain
        assert uniq_key == find_property(properties, UNIQ_KEY)
        assert stored == terminated(properties) + STAMP
        assert folded == folded_properties(stored)


@pytest.mark.parametrize(
    "asking",
    [
        b"DELAY\x013\x02",
        b"TRAN_MSG\x01true\x02",
        b"TIMER_DELAY_MS\x011\x02",
        b"POP_CK\x011\x02",
        b"MSG_REGION\x01else\x02",
        b"CLUSTER\x01else\x02",
        b"UNIQ_KEY\x01again\x02",
    ],
)
def test_properties_that_ask_for_something_have_no_plain_shape(asking: bytes) -> None:
    shapes = Shapes(STAMP)
    assert shapes.read(b"UNIQ_KEY\x01k\x02" + asking) is None
    assert shapes.read(asking + b"UNIQ_KEY\x01k\x02") is None
    assert shapes.read(b"UNIQ_KEY\x01k\x02TAGS\x01red\x02") is not None


def test_properties_without_a_key_are_not_plain() -> None:
    shapes = Shapes(STAMP)
    assert [shapes.read(each) for each in (b"", b"TAGS\x01red\x02", b"UNIQ_KEY\x01k")] == [None] * 3


def test_what_does_not_fit_with_the_stamp_is_not_plain() -> None:
    shapes = Shapes(STAMP)
    room = PROPERTIES_BYTES_MAX - len(STAMP) - len(b"UNIQ_KEY\x01\x02")
    assert shapes.read(b"UNIQ_KEY\x01%b\x02" % (b"k" * room)) is not None
    assert shapes.read(b"UNIQ_KEY\x01%b\x02" % (b"k" * (room + 1))) is None


def test_the_table_is_bounded_and_has_no_room_for_what_will_not_come_again() -> None:
    shapes = Shapes(STAMP)
    for number in range(SHAPES_MAX + 1):
        shapes.read(b"UNIQ_KEY\x01k\x02p\x01%d\x02" % number)
    assert len(shapes) == 1
    shapes.read(b"UNIQ_KEY\x01k\x02KEYS\x01order-4711\x02")
    shapes.read(b"UNIQ_KEY\x01k\x02p\x01%b\x02" % (b"v" * SHAPE_BYTES_MAX))
    assert len(shapes) == 1
