"""Fast ways of the client, each held against the ordinary one: messages of a pull, frames and keys of plain sends."""

from __future__ import annotations

import random
import sys
import zlib
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.client import pulled_messages as module
from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.pulled_messages import any_messages, pulled_messages
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.send_frames import SendTemplates
from dledger_mq.client.subscriptions import TopicSubscription, subscribe
from dledger_mq.message import compiled
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import UniqKeyMaker, month_start_ms
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import encode_record
from tests.stages import EACH, needs_compiled, stage

HOSTS = (pack_host("10.1.2.3", 4567), pack_host("10.1.2.4", 10911), pack_host("::1", 10911))
TOPICS = ("T", "Größe", "%RETRY%g", "L" * 128)
PROPERTIES = st.one_of(
    st.lists(
        st.sampled_from(
            [
                b"UNIQ_KEY\x010A\x02",
                b"TAGS\x01a\x02",
                b"TAGS\x01b\x02",
                b"KEYS\x01k1  k2\x02",
                b"KEYS\x01 \x02",
                b"RETRY_TOPIC\x01Orders\x02",
                b"p\x01v\x01w\x02",
                b"empty\x01\x02",
                b"\x01nameless\x02",
                b"bare\x02",
                b"bad\x01\xff\x02",
                b"last\x01open",
            ]
        ),
        max_size=5,
    ).map(b"".join),
    st.binary(max_size=12),
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.just("T") | st.sampled_from(TOPICS),
            "queue_id": st.just(0) | st.integers(-1, 1),
            "step": st.just(1) | st.integers(-1, 3),
            "physical_offset": st.integers(0, 2**63 - 1),
            "sys_flag": st.just(0) | st.sampled_from([1, 0x2, 0x8, 0x301, 0x101]),
            "born_host": st.just(HOSTS[0]) | st.sampled_from(HOSTS),
            "store_host": st.just(HOSTS[1]) | st.sampled_from(HOSTS),
            "flag": st.integers(-(2**31), 2**31 - 1),
            "reconsume_times": st.integers(0, 3),
            "body": st.binary(max_size=20) | st.binary(max_size=20).map(zlib.compress),
            "properties": PROPERTIES,
        }
    ),
    max_size=5,
)
Outcome = tuple[ReceivedMessage, ...] | str


def outcome(way: Any, records: bytes, *place: Any, **bounds: Any) -> Outcome:
    try:
        return tuple(way(records, *place, **bounds))
    except ConnectionLostError as error:
        return str(error)


def fast_outcome(records: bytes, *place: Any, **bounds: Any) -> Outcome:
    """What comes the fast way, by Python, and by compiled code where there is any."""
    found = []
    for is_compiled in (False, compiled.is_built):
        with stage(is_compiled=is_compiled):
            found.append(outcome(pulled_messages, records, *place, **bounds))
    assert found[0] == found[1]
    return found[1]


def joined(given_records: list[dict[str, Any]]) -> tuple[bytes, int]:
    """Return the records as a broker would send them, and the offset after the last one."""
    offset, pieces = 0, list[bytes]()
    for fields in given_records:
        rest = {name: value for name, value in fields.items() if name not in ("topic", "step")}
        pieces.append(
            encode_record(
                topic=fields["topic"].encode(),
                queue_offset=offset,
                born_timestamp_ms=1_700_000_000_000 + offset,
                store_timestamp_ms=1_700_000_000_007 + offset,
                **rest,
            )
        )
        offset += fields["step"]
    return b"".join(pieces), offset


@given(
    RECORDS,
    st.sampled_from(TOPICS),
    st.sampled_from(["*", "a", "a || b"]),
    st.integers(-1, 3),
    st.integers(-1, 2),
)
def test_messages_of_a_pull_are_those_of_the_general_way(
    given_records: list[dict[str, Any]], topic: str, expression: str, offset: int, beyond: int
) -> None:
    records, end = joined(given_records)
    place = (MessageQueue(topic, "broker-a", 0), subscribe("T", expression, 1))
    bounds = {"offset": QueueOffset(offset), "next_offset": QueueOffset(end + beyond)}
    found = fast_outcome(records, *place, **bounds)
    assert found == outcome(any_messages, records, *place, **bounds)


@given(RECORDS.filter(bool), st.randoms(use_true_random=False), st.integers(1, 3))
def test_damaged_records_are_refused_as_by_the_general_way(
    given_records: list[dict[str, Any]], chance: random.Random, count: int
) -> None:
    records, end = joined(given_records)
    damaged = bytearray(records)
    for _ in range(count):
        damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 0x7F, 0xFF])
    if chance.random() < 0.3:
        del damaged[chance.randrange(len(damaged)) :]
    place = (MessageQueue("T", "broker-a", 0), subscribe("T", "*", 1))
    bounds = {"offset": QueueOffset(0), "next_offset": QueueOffset(end + 1)}
    found = fast_outcome(bytes(damaged), *place, **bounds)
    assert found == outcome(any_messages, bytes(damaged), *place, **bounds)


def plain(**others: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "queue_id": 0,
        "step": 1,
        "physical_offset": 99,
        "sys_flag": 0,
        "born_host": HOSTS[0],
        "store_host": HOSTS[1],
        "body": b"body",
        "properties": b"UNIQ_KEY\x010A\x02TAGS\x01a\x02KEYS\x01k1 k2\x02",
    } | others


@pytest.mark.parametrize("is_compiled", EACH)
@pytest.mark.parametrize(
    ("others", "is_plain"),
    [
        ({}, True),
        ({"flag": 7, "reconsume_times": 2, "properties": b""}, True),
        ({"sys_flag": 1}, False),
        ({"store_host": HOSTS[2]}, False),
        ({"topic": "U"}, False),
        ({"queue_id": 1}, False),
        ({"properties": b"p\x01\xff\x02"}, False),
    ],
)
def test_plain_records_alone_are_not_read_the_general_way(
    others: dict[str, Any], *, is_plain: bool, is_compiled: bool
) -> None:
    records, end = joined([plain(), plain(**others)])
    with (
        stage(is_compiled=is_compiled),
        mock.patch.object(module, "any_messages", return_value=()) as general,
    ):
        found = pulled_messages(
            records,
            MessageQueue("T", "broker-a", 0),
            TopicSubscription("T", "*", frozenset(), 1),
            offset=QueueOffset(0),
            next_offset=QueueOffset(end),
        )
    assert (len(found), general.called) == (2 if is_plain else 0, not is_plain)


@needs_compiled
@pytest.mark.parametrize(
    ("others", "is_taken"),
    [
        ({}, True),
        ({"properties": b"".join(b"p%d\x01v\x02" % number for number in range(40))}, True),
        ({"properties": b"p\x01v\x01w\x02last\x01open"}, True),
        ({"properties": b"bare\x02"}, False),
        ({"properties": b"\x01nameless\x02"}, False),
        ({"properties": b"empty\x01\x02"}, False),
        ({"properties": b"p\x01\xff\x02"}, False),
        ({"sys_flag": 1}, False),
        ({"queue_id": 1}, False),
    ],
)
def test_the_compiled_way_takes_plain_records_and_declines_the_rest(
    others: dict[str, Any], *, is_taken: bool
) -> None:
    records, end = joined([plain(), plain(**others)])
    queue = MessageQueue("T", "broker-a", 0)
    with stage(is_compiled=True):
        found = compiled.received_messages(
            *(records, b"\x01T", 0, 0, end, "T", queue, None, zlib.crc32, ReceivedMessage)
        )
    assert (found is not None) == is_taken


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_what_a_pull_brought() -> None:
    """On all ways out, as with the rest of the stage (tests/unit/message/test_compiled.py)."""
    queue, topic, far = MessageQueue("T", "broker-a", 0), "the topic"[4:5].upper(), 1 << 40
    properties = (b"UNIQ_KEY\x010A\x02", b"KEYS\x01k1 k2\x02", b"p\x01\xff\x02", b"bare\x02")
    several = [joined([plain(properties=each)])[0] for each in properties]
    whole = joined([plain(), plain(properties=properties[0] * 20), plain()])[0]
    tags = frozenset(("a", "b"))

    def fail(*_arguments: object) -> int:
        raise ZeroDivisionError

    def asked(**others: Any) -> tuple[Any, ...]:
        fields: dict[str, Any] = {"records": whole, "piece": b"\x01T", "queue_id": 0, "offset": 0}
        fields |= {"next": far, "topic": topic, "queue": queue, "tags": tags, "crc": zlib.crc32}
        return tuple((fields | {"make": ReceivedMessage} | others).values())

    calls = [
        asked(),
        asked(tags=None),
        asked(tags=["a"]),
        asked(tags={fail}),
        asked(offset=2),
        asked(next=2),
        asked(next=1 << 70),
        asked(piece="T"),
        asked(records=bytearray(whole)),
        asked(records=whole[:-1]),
        asked(crc=fail),
        asked(crc=lambda _: "none"),
        asked(crc=lambda _: 5),
        asked(make=fail),
        asked(queue_id=None),
        *(asked(records=each, tags=None) for each in several),
    ]
    watched: list[Any] = [whole, topic, queue, tags, far, fail, *several]

    def use_all() -> None:
        for arguments in calls:
            with suppress(ZeroDivisionError):
                compiled.received_messages(*arguments)

    with stage(is_compiled=True):
        use_all()
        before = [sys.getrefcount(each) for each in watched]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


def test_records_with_any_one_bit_changed_or_cut_off_are_read_as_by_the_general_way() -> None:
    records, end = joined([plain(), plain()])
    place = (MessageQueue("T", "broker-a", 0), subscribe("T", "*", 1))
    bounds = {"offset": QueueOffset(0), "next_offset": QueueOffset(end)}
    datas = [records[:length] for length in range(len(records))]
    for bit in range(8 * len(records)):
        changed = bytearray(records)
        changed[bit // 8] ^= 1 << bit % 8
        datas.append(bytes(changed))
    differ = [
        data
        for data in datas
        if fast_outcome(data, *place, **bounds) != outcome(any_messages, data, *place, **bounds)
    ]
    assert differ == []


@given(
    st.text(st.characters(codec="utf-8"), max_size=9),
    st.sampled_from(["T", 'q"uote', "per%cent%%d", "Größe"]),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**42),
    st.binary(max_size=9),
)
def test_the_frame_of_a_plain_message_is_that_of_the_general_way(
    group: str, topic: str, queue_id: int, opaque: int, born_ms: int, body: bytes
) -> None:
    templates, general = SendTemplates(group), SendTemplates(group)
    for queue in (MessageQueue(topic, "b", queue_id), MessageQueue(topic, "c", queue_id)):
        wanted = general.frame(
            queue, body, b"UNIQ_KEY\x010AF9\x02", opaque=opaque, born_timestamp_ms=born_ms
        )
        for _ in range(2):  # the second one from what the first one made
            frame = templates.plain(queue, body, "0AF9", opaque=opaque, born_timestamp_ms=born_ms)
            assert frame == wanted


JULY_MS = 1_751_328_000_000


@given(st.lists(st.sampled_from([0, 0, 0, 1, 900, -1, -900, 86_400_000, -999_999, -1_000_001])))
def test_keys_of_one_millisecond_are_those_that_are_made_one_by_one(steps: list[int]) -> None:
    maker = UniqKeyMaker(bytes([10, 0, 0, 1]), 7, 9)
    now_ms, start_ms = JULY_MS, 0
    for count, step in enumerate(steps, start=1):
        now_ms += step
        starts_ms = month_start_ms(now_ms)
        if (
            starts_ms > start_ms or now_ms - start_ms < -1_000_000
        ):  # else the clock stepped back a little
            start_ms = starts_ms
        since_ms = max(now_ms - start_ms, 0)
        assert maker.next_key(now_ms) == f"0A000001000700000009{since_ms:08X}{count:04X}"
