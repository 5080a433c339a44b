"""The keys of an entry in the index and the window, against one record after another, added by hand."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.store.parse import KEY, PHYSICAL_OFFSET, PROPERTIES, STORE_MS, parse_records
from broker.store.state import BrokerState
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger_mq.message.record import encode_record
from tests.unit.store.lone_broker import BORN, HOST

pytestmark = pytest.mark.slow

messages = st.tuples(
    st.sampled_from([b"T", b"U", b"SCHEDULE_TOPIC_XXXX"]),
    st.sampled_from([b"", b"UNIQ_KEY\x01u1\x02", b"UNIQ_KEY\x01u2\x02", b"UNIQ_KEY\x01u3\x02"]),
    st.sampled_from(
        [b"", b"", b"KEYS\x01a\x02", b"KEYS\x01a b\x02", b"KEYS\x01 \x02", b"KEYS\x01b  c \x02"]
    ),
    st.integers(0, 3),
    st.sampled_from([0] * 9 + [4]),
    st.sampled_from([0] * 9 + [1]),
)
logs = st.lists(st.lists(messages, max_size=8), max_size=5)


def log_of(messages_by_entry: list[list[tuple[bytes, bytes, bytes, int, int, int]]]) -> list[Entry]:
    """Build entries whose records have store times of their own; some have a wrong queue offset."""
    entries: list[Entry] = []
    position, offsets, now_ms = (
        Position(0),
        dict.fromkeys((b"T", b"U", b"SCHEDULE_TOPIC_XXXX"), 0),
        1000,
    )
    for number, of_entry in enumerate(messages_by_entry, 1):
        body = b""
        for topic, unique, keys, later_ms, sys_flag, wrong in of_entry:
            now_ms += later_ms - 1
            body += encode_record(
                topic=topic,
                queue_id=0,
                queue_offset=offsets[topic] + wrong,
                physical_offset=position + ENTRY_HEADER_BYTES + len(body),
                sys_flag=sys_flag,
                born_timestamp_ms=1,
                born_host=BORN,
                store_timestamp_ms=now_ms,
                store_host=HOST,
                body=b"x",
                properties=b"a\x01b\x02" + unique + keys,
            )
            offsets[topic] += not wrong and not sys_flag
        entry = Entry(Index(number), Term(1), position, EntryKind.NORMAL, body)
        entries.append(entry)
        position = entry.end_position
    return entries


@given(logs)
def test_keys_are_kept_in_the_order_of_the_log_with_the_latest_time_before_them(
    messages_by_entry: list[list[tuple[bytes, bytes, bytes, int, int, int]]],
) -> None:
    state, log = BrokerState(), log_of(messages_by_entry)
    state.apply(log)
    units, latest_ms, offsets = b"", 0, dict.fromkeys((b"T", b"U", b"SCHEDULE_TOPIC_XXXX"), 0)
    window: dict[bytes, list[int]] = {}
    for entry, of_entry in zip(log, messages_by_entry, strict=True):
        records = parse_records(entry.body, entry.position + ENTRY_HEADER_BYTES)
        for record, (*_, sys_flag, wrong) in zip(records, of_entry, strict=True):
            latest_ms = max(latest_ms, record[STORE_MS])
            if sys_flag or wrong:
                continue
            topic, at = record[KEY][0], record[PHYSICAL_OFFSET]
            offsets[topic] += 1
            _, unique, keys = record[PROPERTIES]
            if unique is not None:
                window.setdefault(unique, []).append(at)
            for text in (unique, *(keys or b"").split(b" ")):
                if text:
                    units += struct.pack(">Iqq", crc32c(topic + b"#" + text), at, latest_ms)
    assert b"".join(state.key_index.saved_units()) == units
    assert state.last_store_ms == latest_ms
    recent = state.recent_sends
    assert {key: list(recent.offsets(key)) for key in window} == {
        key: found[-8:] for key, found in window.items()
    }
    assert sum(len(keys) for _, keys, _ in recent.entries()) == sum(map(len, window.values()))
    assert {queue.key[0]: queue.max_offset for queue in state.queues if queue.max_offset} == {
        topic: count for topic, count in offsets.items() if count
    }
