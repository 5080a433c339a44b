"""Batches that compiled code reads, against the way that takes item by item: the same plan, or the same refusal.

The bytes are a client's: cut off, with lengths that lie, and with properties that mislead.
"""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.service.catalog import Catalog
from broker.service.refusal import Refusal
from broker.service.send import SendPlan, SendRules, SendSettings
from broker.service.shapes import Shapes
from broker.service.timers import TimerRules
from broker.store.topics import TopicConfig
from dledger_mq.message import compiled
from dledger_mq.message.batch import BATCH_ITEMS_MAX, BatchItem, encode_batch, split_batch
from dledger_mq.message.errors import BatchError
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX
from dledger_mq.remoting.requests import SendFields
from tests.stages import examples, needs_compiled, stage

pytestmark = needs_compiled

STAMP = SendSettings.make_stamp(region="R", trace_on=True, cluster="C")
FIELDS = SendFields(
    producer_group="p",
    topic="T",
    queue_id=1,
    sys_flag=0,
    born_timestamp_ms=1,
    flag=0,
    is_batch=True,
)

keys = st.sampled_from([b"k1", b"k2", b"key-3", b"", b"a\x01b", b"KEYS", b"DELAY\x01", b"\xff"])
pieces = st.sampled_from(
    [b"U\x01UNIQ\x02", b"TAGS\x01red\x02", b"TAGS\x01blue\x02", b"WAIT\x01true\x02", b"a\x01b\x02"]
)
odd_pieces = st.sampled_from(
    [
        b"UNIQ_KEY",
        b"UNIQ_KEY\x01\x02",
        b"UNIQ_KEY\x01k9\x02",
        b"MYUNIQ_KEY\x01k9\x02",
        b"UUNIQ_KEY\x01k9",
        b"KEYS\x01a b\x02",
        b"TAGS\x01\x02",
        b"TAGS\x01red",
        b"DELAY\x013\x02",
        b"DELAY\x01none\x02",
        b"TIMER_DELAY_MS\x01100\x02",
        b"TRAN_MSG\x01true\x02",
        b"MSG_REGION\x01else\x02",
        b"CLUSTER\x01else\x02",
        b"POP_CK\x011 2 3\x02",
        b"\x02",
        b"\x01",
        b"\xff\x80",
        b"p\x01" + b"v" * 32_600 + b"\x02",
        b"q\x01" + b"v" * 1_100 + b"\x02",
    ]
)
texts = st.lists(pieces, max_size=2).map(b"".join)
odd_texts = st.lists(pieces | odd_pieces, max_size=3).map(b"".join)
plain_properties = st.builds(
    lambda before, key, rest: before + b"UNIQ_KEY\x01" + key + b"\x02" + rest,
    texts,
    st.sampled_from([b"k1", b"k2", b"key-3", b"k" * 200]),
    texts,
)
odd_properties = st.builds(
    lambda before, key, end, rest: before + b"UNIQ_KEY\x01" + key + end + rest,
    odd_texts,
    keys,
    st.sampled_from([b"\x02"] * 5 + [b""]),
    odd_texts,
)
flags = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])
bodies = st.sampled_from([b"", b"x", b"x" * 300, b"UNIQ_KEY\x01k\x02"])
plain_items = st.builds(BatchItem, flags, bodies, plain_properties)
odd_items = st.builds(BatchItem, flags, bodies, odd_properties)
plain_batches = st.lists(plain_items, min_size=1, max_size=6).map(encode_batch)
mixed_batches = st.builds(
    lambda some, other, more: encode_batch([*some, other, *more]),
    st.lists(plain_items, max_size=3),
    odd_items,
    st.lists(plain_items, max_size=2),
)
damage = st.lists(
    st.tuples(st.integers(0, 2**16), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)


def decided(
    some: list[bytes], *, is_compiled: bool, message_bytes_max: int = 2**22
) -> list[SendPlan | Refusal]:
    """What new rules decide on batches, one after the other."""
    numbers = count()
    rules = SendRules(
        Catalog({"T": TopicConfig("T", 4, 4)}.get, {}.get),
        SendSettings(message_bytes_max, True, True, 6, 18, STAMP),
        pick=lambda below: 0,
        new_key=lambda: f"made-{next(numbers)}",
        timers=TimerRules(10_000, lambda: 1_000_000),
    )
    with stage(is_compiled=is_compiled):
        return [rules.decide(FIELDS, body, 409) for body in some]


def is_plain(body: bytes) -> bool:
    """Whether every item is whole and plain, as the Python code reads them."""
    shapes = Shapes(STAMP)
    try:
        items = split_batch(body)
    except BatchError:
        return False
    return all(shapes.read(item.properties) is not None for item in items)


def agree(*some: bytes) -> None:
    """Demand the same decisions, and that compiled code takes just the plain batches."""
    both = [[*some], [*some, *some]]
    assert [decided(each, is_compiled=True) for each in both] == [
        decided(each, is_compiled=False) for each in both
    ]
    with stage(is_compiled=True):
        shapes = Shapes(STAMP)
        taken = [shapes.read_batch(body) is not None for body in some]
    assert taken == [is_plain(body) for body in some]


@examples(200)
@given(st.lists(plain_batches, min_size=1, max_size=3))
def test_plain_batches_are_planned_alike(some: list[bytes]) -> None:
    assert all(map(is_plain, some))
    agree(*some)


@examples(300)
@given(st.lists(mixed_batches, min_size=1, max_size=2))
def test_batches_with_odd_properties_are_planned_alike(some: list[bytes]) -> None:
    agree(*some)


@examples(400)
@given(plain_batches | mixed_batches, damage, st.integers(0, 60), st.binary(max_size=25))
@example(b"", [], 0, b"")
def test_broken_batches_are_refused_alike(
    body: bytes, changes: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    agree(body[:cut], body[: max(0, len(body) - cut)], body + more)
    broken = bytearray(body)
    for where, value in changes:
        if broken:
            broken[where % len(broken)] = value
    agree(bytes(broken))


@examples(300)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_alike(body: bytes) -> None:
    agree(body)


LENGTHS = [-(2**31), -(2**31) + 22, -23, -22, -1, 0, 1, 19, 20, 21, 22, 23, 24, 255]
LENGTHS += [2**15 - 1, 2**15, 2**31 - 22, 2**31 - 1]


def item_of(size: int, body_bytes: int, properties_bytes: int, tail: bytes) -> bytes:
    """An item whose lengths are as told, whatever is there."""
    head = struct.pack(">i8xii", size, 0, body_bytes) + b"x"
    return head + struct.pack(">h", properties_bytes) + tail


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("tail", [b"", b"U", b"UNIQ_KEY\x01k\x02"])
def test_lengths_that_lie_are_refused_alike(length: int, tail: bytes) -> None:
    sound = (23 + len(tail), 1, len(tail))
    agree(item_of(*sound, tail))
    agree(item_of(length, *sound[1:], tail), item_of(sound[0], length, sound[2], tail))
    if -(2**15) <= length < 2**15:
        agree(item_of(*sound[:2], length, tail))
    agree(item_of(length, length - 22 if length > -(2**31) + 21 else 0, 0, tail))
    near = (length, sound[0] - 1, sound[0], sound[0] + 1)
    agree(*(item_of(*sound, tail) + item_of(size, 1, len(tail), tail) for size in near))


def test_every_cut_of_a_batch_is_refused_alike() -> None:
    items = [
        BatchItem(7, b"one", b"UNIQ_KEY\x01k\x02a\x01b\x02"),
        BatchItem(0, b"", b"UNIQ_KEY\x01l\x02"),
    ]
    whole = encode_batch(items)
    assert is_plain(whole)
    agree(*(whole[:end] for end in range(len(whole) + 1)))
    agree(*(whole[start:] for start in range(1, len(whole))))


def test_every_flipped_bit_is_seen_alike() -> None:
    whole = encode_batch(
        BatchItem(0, b"b", b"A\x01b\x02UNIQ_KEY\x01%b\x02TAGS\x01c\x02" % key)
        for key in (b"k", b"l")
    )
    assert is_plain(whole)
    flipped = []
    for bit in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(broken))
    agree(*flipped)


def test_a_mark_that_is_cut_off_at_the_end_of_all_is_none() -> None:
    mark = b"UNIQ_KEY\x01"
    ends = [b"some\x01other\x02" + mark[:length] for length in range(len(mark) + 1)]
    ends += [b"U\x01b\x02" + end for end in ends]
    agree(*(encode_batch([BatchItem(0, b"x", end)]) for end in ends))
    assert not any(is_plain(encode_batch([BatchItem(0, b"x", end)])) for end in ends)


def with_key(key_bytes: int, *, rest: bytes = b"") -> bytes:
    return b"UNIQ_KEY\x01" + b"k" * key_bytes + b"\x02" + rest


def test_properties_are_as_long_as_a_record_can_hold_and_no_longer() -> None:
    longest = PROPERTIES_BYTES_MAX - len(with_key(0)) - len(STAMP)
    for key_bytes in (longest - 1, longest, longest + 1):
        body = encode_batch(
            [BatchItem(0, b"x", with_key(1)), BatchItem(0, b"x", with_key(key_bytes))]
        )
        agree(body)
        assert is_plain(body) == (key_bytes <= longest)


def test_a_batch_has_so_many_items_and_no_more() -> None:
    item = encode_batch([BatchItem(0, b"", with_key(1))])
    for items in (BATCH_ITEMS_MAX, BATCH_ITEMS_MAX + 1):
        found = [decided([item * items], is_compiled=way) for way in (True, False)]
        assert found[0] == found[1]
    with stage(is_compiled=True):
        assert compiled.read_batch(item * 3, 3, _no_tag) is not None
        assert compiled.read_batch(item * 4, 3, _no_tag) is None
        assert compiled.read_batch(item, 0, _no_tag) is None


def _no_tag(before: bytes, rest: bytes) -> tuple[bytes, bytes, int, None]:
    return before, rest, 0, None


def test_what_the_shapes_raise_comes_through() -> None:
    def fail(_before: bytes, _rest: bytes) -> Any:
        raise ZeroDivisionError

    item = encode_batch([BatchItem(0, b"", with_key(1))])
    with stage(is_compiled=True):
        with pytest.raises(ZeroDivisionError):
            compiled.read_batch(item, 9, fail)
        for wrong in ((), (b"", b"", 0), "four", 4, [b"", b"", 0, None]):
            with pytest.raises(TypeError, match="a shape has four parts"):
                compiled.read_batch(item, 9, lambda *_cut, wrong=wrong: wrong)  # type: ignore[misc]
        assert compiled.read_batch(item, 9, lambda *_cut: ("", b"", 0, None)) is None  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "arguments", [(), (b"",), ("text", 1, _no_tag), (bytearray(b"x"), 1, _no_tag)]
)
def test_wrong_arguments_are_an_error_and_no_crash(arguments: tuple[Any, ...]) -> None:
    with stage(is_compiled=True), pytest.raises(TypeError):
        compiled.read_batch(*arguments)
